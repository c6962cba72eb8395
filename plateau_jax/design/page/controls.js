// The fields of the selected curve: one per argument of its constructor, with the constructor's messages.

import { element, setProperties } from "./elements.js";
import { valueAt, withValue } from "./history.js";
import { continuation, cooldown, isRise, newAbsolutePlateau, newPlateau, plateauNumbers, stepsOfRun, withNewStage } from "./parts.js";
import { ShapeField } from "./shape_field.js";

const LABELS = {
  total_steps: "Total steps", warmup_steps: "Warmup steps", warmup_shape: "Warmup shape",
  init_lr_ratio: "Initial LR / peak", decay_shape: "Decay shape", min_lr_ratio: "Final LR / peak",
  start: "Start / peak", at: "First step", steps: "Steps", to: "To / peak", shape: "Shape",
  scale: "Scale", peak: "Peak learning rate",
  stop: "First step after", unit: "Unit", reference: "Reference batch", exponent: "Exponent",
};
const labelOf = (name, kind) => (kind === "part" && name === "start" ? LABELS.at : LABELS[name] ?? name);
// The labels of the field for P next to a shape, by the shape's argument.
const POWER_LABELS = { warmup_shape: "P of the warmup", decay_shape: "P of the decay", shape: "P of the shape" };

export class Controls {
  #form;
  #listeners;
  #inputs = [];
  #shapes = [];  // {field, path}
  #slots = new Map();  // the places for messages, by path
  #structure = null;
  isWaiting = false;  // a message, for the end of the typing

  // The shapes that each field can have, from the server: to set before the first drawing.
  choices;

  // listeners.edit(path, value) changes one field, listeners.restructure(change) adds, moves or removes rows and
  // derived curves, listeners.leave() is called when a field loses the focus, listeners.entry() returns the entry.
  constructor(form, listeners) {
    this.#form = form;
    this.#listeners = listeners;
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("focusout", () => listeners.leave());
  }

  // `entry` is {id, name, peak, curve}; paths start there. The field with the focus keeps its text, so that
  // typing is not disturbed, except after undo and redo.
  draw(entry, { fault = null, advice = [], shapes = {}, isUndone = false }) {
    const structure = JSON.stringify([entry.id, structureOf(entry.curve)]);
    if (structure !== this.#structure) this.#build(entry, structure);
    for (const { input, path } of this.#inputs) {
      const value = valueAt(entry, path);
      if ((input !== document.activeElement || isUndone) && parseField(input.value, path, entry) !== value) input.value = value ?? "";
      input.defaultValue = input.value;
    }
    for (const { field, path } of this.#shapes) field.draw(valueAt(entry, path), rises(entry, path), shapes, isUndone);
    this.#numberRows(entry);
    this.#showMessages(fault, advice);
  }

  // Put the numbers of plateaus, which may change while they are edited, and of stages in place of "#".
  #numberRows(entry) {
    for (const row of this.#form.querySelectorAll("[data-row]")) {
      const path = row.dataset.row.split("/");
      const [list, index] = path.slice(-2);
      const number = list === "stages" ? Number(index) + 1 : plateauNumbers(valueAt(entry, path.slice(0, -2)))[list][index];
      row.cells[0].textContent = number;
      for (const node of row.querySelectorAll("[data-label]")) {
        const label = node.dataset.label.replace("#", number);
        setProperties(node, { "aria-label": label, title: node.matches("button") ? label : null });
      }
    }
  }

  #allInputs() {
    return [...this.#inputs, ...this.#shapes.flatMap(({ field, path }) => field.inputs.map((input) => ({ input, path })))];
  }

  focus(path) {
    this.#form.querySelector(`[data-path="${CSS.escape(path.join("/"))}"]`)?.focus();
  }

  #build(entry, structure) {
    this.#structure = structure;
    this.#inputs = [];
    this.#shapes = [];
    this.#slots = new Map();
    this.#form.replaceChildren(this.#field(["peak"]), ...this.#block(entry.curve, ["curve"], true));
  }

  // The fields of a curve and, recursively, of the curves it is derived from.
  #block(curve, path, isOutermost = false) {
    const fields = { undefined: () => this.#plateauCurve(curve, path), staged: () => this.#staged(curve, path),
      cooldown: () => this.#cooldown(curve, path), then: () => this.#continuation(curve, path),
      part: () => this.#part(curve, path), scaled: () => this.#scaled(curve, path) };
    const block = [...(fields[curve?.kind] ?? (() => []))(), this.#slot(path)];
    if (!isOutermost && path.at(-1) === "curve") return block;
    return [...block, element("div", { class: "actions" },
      this.#button("+ Cooldown", [...path, "cooldown"], () => this.#wrap(path, cooldown, "at")),
      this.#button("+ Continuation", [...path, "continuation"], () => this.#wrap(path, continuation, "scale")))];
  }

  #plateauCurve(curve, path) {
    const plateaus = ["plateaus", "absolute_plateaus"].map((name) => {
      const unit = name === "plateaus" ? "%" : "steps";
      const rows = (curve[name] ?? []).map((_, index) => ({
        cells: [[...path, name, index, 0], [...path, name, index, 1]],
        labels: [`Plateau # in ${unit}, start`, `Plateau # in ${unit}, length`],
        path: [...path, name, index],
        actions: [this.#button("×", [...path, name, index, "remove"], () => this.#removeItem([...path, name], index), `Remove plateau # in ${unit}`)],
      }));
      return [...(rows.length ? [this.#table(["", `Start, ${unit}`, `Length, ${unit}`, ""], rows)] : []), this.#slot([...path, name])];
    });
    return [
      ...["total_steps", "warmup_steps", "warmup_shape", "init_lr_ratio", "decay_shape", "min_lr_ratio"]
        .map((name) => this.#field([...path, name])),
      element("fieldset", {}, element("legend", {}, "Plateaus"),
        ...plateaus.flat(),
        element("div", { class: "actions" },
          this.#button("+ Plateau, in %", [...path, "plateaus", "add"], () => this.#addItem(path, "plateaus", newPlateau)),
          this.#button("+ in steps", [...path, "absolute_plateaus", "add"], () => this.#addItem(path, "absolute_plateaus", newAbsolutePlateau)))),
    ];
  }

  #staged(curve, path) {
    const stages = Array.isArray(curve.stages) ? curve.stages : [];
    const rows = stages.map((_, index) => ({
      cells: [0, 1, 2].map((item) => [...path, "stages", index, item]),
      labels: ["steps", "to", "shape"].map((part) => `Stage #, ${part}`),
      path: [...path, "stages", index],
      actions: [
        ...[["↑", "up", -1, 0], ["↓", "down", 1, stages.length - 1]].map(([arrow, direction, offset, end]) =>
          this.#button(arrow, [...path, "stages", index, direction],
            () => this.#moveItem([...path, "stages"], index, direction, offset), `Move stage # ${direction}`, index === end)),
        this.#button("×", [...path, "stages", index, "remove"], () => this.#removeItem([...path, "stages"], index), `Remove stage #`, stages.length === 1),
      ],
    }));
    return [
      this.#field([...path, "start"]),
      element("fieldset", {}, element("legend", {}, "Stages"),
        this.#table(["", "Steps", "To", "Shape", ""], rows), this.#slot([...path, "stages"]),
        element("p", { class: "caveat" }, "“To” is a fraction of the peak; if it is empty, the stage holds its level."),
        element("div", { class: "actions" },
          this.#button("+ Stage", [...path, "stages", "add"], () => this.#addStage(path)))),
    ];
  }

  #cooldown(curve, path) {
    return [...this.#block(curve.curve, [...path, "curve"]),
      this.#group("Cooldown", path, ["at", "steps", "to", "shape"].map((name) => this.#field([...path, name], "Cooldown")))];
  }

  #continuation(curve, path) {
    return [...this.#block(curve.curve, [...path, "curve"]),
      this.#group("Continuation", path, [
        this.#field([...path, "scale"], "Continuation"),
        element("fieldset", { "aria-label": "The continuing curve" }, ...this.#block(curve.other, [...path, "other"])),
      ])];
  }

  #part(curve, path) {
    return [...this.#block(curve.curve, [...path, "curve"]),
      this.#group("Part", path, ["start", "stop"].map((name) => this.#field([...path, name], "Part", "part")))];
  }

  #scaled(curve, path) {
    const batches = curve.pairs.map(([threshold, batch]) => `${batch} from ${threshold}`).join(", ");
    return [...this.#block(curve.curve, [...path, "curve"]),
      this.#group("Batch plan", path, [
        element("p", { class: "caveat" }, `Batches: ${batches}. Change them in the JSON.`),
        ...["unit", "reference", "exponent"].map((name) => this.#field([...path, name], "Batch plan")),
      ])];
  }

  #group(title, path, children) {
    const remove = this.#button("×", [...path, "remove"], () => this.#listeners.restructure((entry) => withValue(entry, path, valueAt(entry, path).curve)), `Remove the ${title.toLowerCase()}`);
    return element("fieldset", {}, element("legend", {}, element("span", { class: "legend" }, title, remove)), ...children);
  }

  #field(path, group = "", kind = null) {
    const name = path.at(-1);
    const label = element("span", {}, labelOf(name, kind));
    const inGroup = (text) => (group ? `${group}: ${text}` : null);
    const input = name in POWER_LABELS
      ? this.#shape(path, this.choices[name], { "aria-label": inGroup(LABELS[name]) ?? LABELS[name] }, { "aria-label": inGroup("P") ?? POWER_LABELS[name] })
      : this.#input(path, { "aria-label": inGroup(labelOf(name, kind)) });
    return element("label", { class: "field" }, label, input, this.#slot(path));
  }

  #table(heads, rows) {
    const body = rows.flatMap(({ cells, labels, path, actions }) => [
      element("tr", { "data-row": path.join("/") }, element("th", { scope: "row" }),
        ...cells.map((cell, item) => element("td", {}, item === 2
          ? this.#shape(cell, this.choices.shape, { "data-label": labels[item] }, { "data-label": labels[item].replace("shape", "P") })
          : this.#input(cell, { "data-label": labels[item] }))),
        element("td", { class: "moves" }, ...actions)),
      element("tr", {}, element("td", { colspan: heads.length }, this.#slot(path))),
    ]);
    return element("table", { class: "rows" },
      element("thead", {}, element("tr", {}, ...heads.map((text) => (text ? element("th", { scope: "col" }, text) : element("td"))))),
      element("tbody", {}, ...body));
  }

  #input(path, properties) {
    const input = element("input", {
      ...properties, "data-path": path.join("/"), spellcheck: "false", autocapitalize: "off",
      inputmode: "decimal",
      input: () => {
        input.defaultValue = input.value;
        this.#listeners.edit(path, parseField(input.value, path, this.#listeners.entry()));
      },
    });
    this.#inputs.push({ input, path });
    return input;
  }

  #shape(path, choices, properties, powerProperties) {
    const keyed = (more, key) => ({ ...more, "data-path": key.join("/") });
    const field = new ShapeField(choices, keyed(properties, path), keyed(powerProperties, [...path, "power"]), (shape) => this.#listeners.edit(path, shape));
    this.#shapes.push({ field, path });
    return field.node;
  }

  #slot(path) {
    const key = path.join("/");
    const slot = element("p", { class: "fault", id: `fault-${key.replaceAll("/", "-")}`, role: "alert" });
    this.#slots.set(key, slot);
    return slot;
  }

  // The path identifies the button when it is drawn anew.
  #button(text, path, click, label = null, disabled = false) {
    const properties = { class: label ? "plain" : null, "data-path": path.join("/"), "aria-label": label, "data-label": label, title: label };
    return element("button", { type: "button", ...properties, disabled, click }, text);
  }

  // Each message stands next to its field. Advice is about a curve that is valid. The fault of a number that is being
  // typed waits until the field is left, or the number is one.
  #showMessages(fault, advice) {
    let faultPlace = fault && this.#placeOf(fault);
    const isTyped = ({ input, path }) => input === document.activeElement && isIncomplete(input.value) && covers(faultPlace, path);
    this.isWaiting = Boolean(faultPlace) && this.#allInputs().some(isTyped);
    if (this.isWaiting) faultPlace = null;
    const places = fault ? [] : advice.map((message) => ({ ...this.#placeOf(message), message }));
    for (const slot of this.#slots.values()) {
      const isFault = slot === faultPlace?.slot;
      const messages = isFault ? [fault] : places.filter((place) => place.slot === slot).map(({ message }) => message);
      const text = messages.map(({ message }) => message).join(". ");
      setProperties(slot, { class: isFault || !text ? "fault" : "advice", role: isFault || !text ? "alert" : "status" });
      // Screen readers would announce an unchanged message again if it were set.
      if (slot.textContent !== text) slot.textContent = text;
    }
    for (const { input, path } of this.#allInputs()) {
      const isInvalid = Boolean(faultPlace) && covers(faultPlace, path);
      const slot = isInvalid ? faultPlace.slot : places.find((place) => covers(place, path))?.slot;
      setProperties(input, { "aria-invalid": isInvalid ? "true" : null, "aria-describedby": slot?.id });
    }
  }

  // The slot next to the field at fault, or else the nearest one around it: of the list's item, of the field, of the
  // curve, of the curves derived from it.
  #placeOf({ path }) {
    for (let length = path.length; length > 0; length -= 1) {
      const slot = this.#slots.get(path.slice(0, length).join("/"));
      if (slot) return { key: path.join("/"), slot, isField: !["curve", "other"].includes(path[length - 1]) };
    }
    return this.#placeOf({ path: ["curve"] });
  }

  #wrap(path, derive, firstField) {
    this.#listeners.restructure((entry) => withValue(entry, path, derive(valueAt(entry, path))));
    this.focus([...path, firstField]);
  }

  // Add what newItem(curve) returns to a list of the curve at the path.
  #addItem(path, list, newItem) {
    const curve = valueAt(this.#listeners.entry(), path);
    const items = [...(curve[list] ?? []), newItem(curve)];
    this.#listeners.restructure((entry) => withValue(entry, [...path, list], items));
    this.focus([...path, list, items.length - 1, 0]);
  }

  #addStage(path) {
    const [stages, index] = withNewStage(valueAt(this.#listeners.entry(), path));
    this.#listeners.restructure((entry) => withValue(entry, [...path, "stages"], stages));
    this.focus([...path, "stages", index, 0]);
  }

  #removeItem(path, index) {
    this.#listeners.restructure((entry) => withValue(entry, path, valueAt(entry, path).filter((_, position) => position !== index)));
  }

  // Swap an item with its neighbour. The focus follows the item.
  #moveItem(path, index, direction, offset) {
    const target = index + offset;
    this.#listeners.restructure((entry) => {
      const items = [...valueAt(entry, path)];
      [items[index], items[target]] = [items[target], items[index]];
      return withValue(entry, path, items);
    });
    // At the end of the list the button is disabled and takes no focus, so the first field keeps it.
    this.focus([...path, target, 0]);
    this.focus([...path, target, direction]);
  }
}

const rises = (entry, path) => path.at(-1) === "warmup_shape" || (path.at(-3) === "stages" && isRise(valueAt(entry, path.slice(0, -3)), path.at(-2)));

// Two curves of the same structure have the same fields.
function structureOf(curve) {
  if (curve === null || typeof curve !== "object") return null;
  return [curve.kind, curve.pairs, curve.plateaus?.length, curve.absolute_plateaus?.length, curve.stages?.length,
    "curve" in curve ? structureOf(curve.curve) : 0, "other" in curve ? structureOf(curve.other) : 0];
}

// True if a message is about the field at the path.
const covers = ({ key, isField }, path) => isField && `${path.join("/")}/`.startsWith(`${key}/`);

// True for the beginning of a number that is not one yet, such as "" and "6e-" on the way to "6e-4".
const isIncomplete = (text) => /^[-+]?\d*\.?\d*(e[-+]?)?$/i.test(text.trim()) && Number.isNaN(Number(text || "."));

// A number, with separators between digits allowed; a percentage of the run as steps; null for an empty field; else
// the text itself, which the constructor rejects with a message.
function parseField(text, path, entry) {
  const plain = text.trim().replace(/(?<=\d)[_\s\u202f](?=\d)/g, "");
  if (plain === "") return null;
  const [, digits, percent] = /^(.*?)\s*(%?)$/.exec(plain);
  const isNumber = /^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/i.test(digits) && Number.isFinite(Number(digits));
  const value = !percent || path.includes("plateaus") ? Number(digits) : stepsOfRun(Number(digits), entry, path);
  return isNumber && Number.isFinite(value) ? value : text.trim();
}
