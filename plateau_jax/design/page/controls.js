// The fields of the selected curve: one per argument of its constructor, with the constructor's messages.

import { continuation, cooldown, isRise, stepsOfRun, withNewPlateau, withNewStage } from "./edits.js";
import { element, setProperties } from "./elements.js";
import { valueAt, withValue } from "./history.js";
import { ShapeField } from "./shape_field.js";

const FIELDS = {  // by the kind of a curve
  undefined: ["total_steps", "warmup_steps", "warmup_shape", "init_lr_ratio", "decay_shape", "min_lr_ratio"],
  staged: ["start"], cooldown: ["at", "steps", "to", "shape"], then: ["scale"], part: ["start", "stop"],
  scaled: ["unit", "reference", "exponent"],
};
const TITLES = { cooldown: "Cooldown", then: "Continuation", part: "Part", scaled: "Batch plan" };
const LABELS = {
  total_steps: "Total steps", warmup_steps: "Warmup steps", warmup_shape: "Warmup shape",
  init_lr_ratio: "Initial LR / peak", decay_shape: "Decay shape", min_lr_ratio: "Final LR / peak",
  start: "Start / peak", at: "First step", steps: "Steps", to: "To / peak", shape: "Shape",
  scale: "Scale", peak: "Peak learning rate",
  stop: "First step after", unit: "Unit", reference: "Reference batch", exponent: "Exponent",
};
// The labels of the field for P next to a shape, by the shape's argument.
const POWER_LABELS = { warmup_shape: "P of the warmup", decay_shape: "P of the decay", shape: "P of the shape" };

export class Controls {
  #form;
  #listeners;
  #inputs = [];  // {input, path}
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
  draw(entry, { fault = null, advice = [], isUndone = false }) {
    const structure = JSON.stringify([entry.id, structureOf(entry.curve)]);
    if (structure !== this.#structure) this.#build(entry, structure);
    for (const { input, path } of this.#inputs) {
      const value = String(valueAt(entry, path) ?? "");
      if ((input !== document.activeElement || isUndone) && input.value.trim() !== value) input.value = value;
      input.defaultValue = input.value;
    }
    for (const { field, path } of this.#shapes) field.draw(valueAt(entry, path), rises(entry, path), isUndone);
    this.#showMessages(fault, advice);
  }

  #allInputs() {
    return [...this.#inputs, ...this.#shapes.flatMap(({ field, path }) => [field.select, field.power].map((input) => ({ input, path })))];
  }

  #focus(path) {
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
    const title = TITLES[curve.kind];
    const fields = FIELDS[curve.kind].map((name) => this.#field([...path, name], title));
    const block = [...(title ? [...this.#block(curve.curve, [...path, "curve"]), this.#derived(title, curve, path, fields)]
      : [...fields, curve.kind ? this.#stages(curve, path) : this.#plateaus(curve, path)]), this.#slot(path)];
    if (!isOutermost && path.at(-1) === "curve") return block;
    return [...block, element("div", { class: "actions" },
      this.#button("+ Cooldown", [...path, "cooldown"], () => this.#wrap(path, cooldown, "at")),
      this.#button("+ Continuation", [...path, "continuation"], () => this.#wrap(path, continuation, "scale")))];
  }

  #derived(title, curve, path, fields) {
    const remove = this.#button("×", [...path, "remove"], () => this.#change(path, ({ curve }) => curve), `Remove the ${title.toLowerCase()}`);
    const batches = curve.pairs?.map(([threshold, batch]) => `${batch} from ${threshold}`).join(", ");
    return element("fieldset", {}, element("legend", {}, element("span", { class: "legend" }, title, remove)),
      batches ? element("p", { class: "caveat" }, `Batches: ${batches}. Change them in the JSON.`) : null,
      ...fields,
      curve.other ? element("fieldset", { "aria-label": "The continuing curve" }, ...this.#block(curve.other, [...path, "other"])) : null);
  }

  #plateaus(curve, path) {
    const table = (list, unit) => {
      const rows = curve[list].map((_, index) => {
        const name = `${index + 1} in ${unit}`;
        const remove = this.#removeButton([...path, list], index, `Remove plateau ${name}`);
        return this.#row([...path, list, index], null, [`Plateau ${name}, start`, `Plateau ${name}, length`], [remove]);
      });
      return [rows.length ? this.#table(["", `Start, ${unit}`, `Length, ${unit}`, ""], rows) : null, this.#slot([...path, list])];
    };
    const add = (text, list) => this.#button(text, [...path, list, "add"], () => {
      this.#change(path, (curve) => ({ ...curve, [list]: withNewPlateau(curve, list) }));
      this.#focus([...path, list, curve[list].length, 0]);
    });
    return element("fieldset", {}, element("legend", {}, "Plateaus"), ...table("plateaus", "%"), ...table("absolute_plateaus", "steps"),
      element("div", { class: "actions" }, add("+ Plateau, in %", "plateaus"), add("+ in steps", "absolute_plateaus")));
  }

  #stages({ stages }, path) {
    const list = [...path, "stages"];
    const rows = stages.map((_, index) => {
      const number = index + 1;
      const move = (arrow, direction, offset, end) => this.#button(arrow, [...list, index, direction], () => this.#moveItem(list, index, direction, offset), `Move stage ${number} ${direction}`, index === end);
      return this.#row([...list, index], number, ["steps", "to", "shape"].map((part) => `Stage ${number}, ${part}`),
        [move("↑", "up", -1, 0), move("↓", "down", 1, stages.length - 1), this.#removeButton(list, index, `Remove stage ${number}`, stages.length === 1)]);
    });
    return element("fieldset", {}, element("legend", {}, "Stages"),
      this.#table(["", "Steps", "To", "Shape", ""], rows), this.#slot(list),
      element("p", { class: "caveat" }, "“To” is a fraction of the peak; if it is empty, the stage holds its level."),
      element("div", { class: "actions" }, this.#button("+ Stage", [...list, "add"], () => {
        const [added, index] = withNewStage(valueAt(this.#listeners.entry(), path));
        this.#change(list, () => added);
        this.#focus([...list, index, 0]);
      })));
  }

  #field(path, group = null) {
    const name = path.at(-1), text = group === TITLES.part && name === "start" ? LABELS.at : LABELS[name];
    const named = (label) => ({ "aria-label": group ? `${group}: ${label}` : label });
    const input = name in POWER_LABELS ? this.#shape(path, name, named(text), named(group ? "P" : POWER_LABELS[name])) : this.#input(path, named(text));
    return element("label", { class: "field" }, element("span", {}, text), input, this.#slot(path));
  }

  #table(heads, rows) {
    return element("table", { class: "rows" },
      element("thead", {}, element("tr", {}, ...heads.map((text) => (text ? element("th", { scope: "col" }, text) : element("td"))))),
      element("tbody", {}, ...rows.flat()));
  }

  // A row of a table, with a number or null, and a row for the messages about it.
  #row(path, number, labels, actions) {
    const cells = labels.map((label, item) => element("td", {}, item === 2
      ? this.#shape([...path, item], "shape", { "aria-label": label }, { "aria-label": label.replace("shape", "P") })
      : this.#input([...path, item], { "aria-label": label })));
    return [element("tr", {}, number ? element("th", { scope: "row" }, number) : element("td"), ...cells, element("td", { class: "moves" }, ...actions)),
      element("tr", {}, element("td", { colspan: labels.length + 2 }, this.#slot(path)))];
  }

  #input(path, properties) {
    const input = element("input", {
      ...properties, "data-path": path.join("/"), spellcheck: "false", autocapitalize: "off", inputmode: "decimal",
      input: () => {
        input.defaultValue = input.value;
        this.#listeners.edit(path, parseField(input.value.trim(), path, this.#listeners.entry()));
      },
    });
    this.#inputs.push({ input, path });
    return input;
  }

  #shape(path, name, properties, powerProperties) {
    const keyed = (more, key) => ({ ...more, "data-path": key.join("/") });
    const field = new ShapeField(this.choices[name], keyed(properties, path), keyed(powerProperties, [...path, "power"]), (shape) => this.#listeners.edit(path, shape));
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
    return element("button", { type: "button", class: label ? "plain" : null, "data-path": path.join("/"), "aria-label": label, title: label, disabled, click }, text);
  }

  #removeButton(list, index, label, disabled = false) {
    return this.#button("×", [...list, index, "remove"], () => this.#change(list, (items) => items.toSpliced(index, 1)), label, disabled);
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

  // Replace the part of the entry at a path.
  #change(path, change) {
    this.#listeners.restructure((entry) => withValue(entry, path, change(valueAt(entry, path))));
  }

  #wrap(path, derive, firstField) {
    this.#change(path, derive);
    this.#focus([...path, firstField]);
  }

  // Swap an item with its neighbour. The focus follows the item.
  #moveItem(list, index, direction, offset) {
    const target = index + offset;
    this.#change(list, (items) => items.with(index, items[target]).with(target, items[index]));
    // At the end of the list the button is disabled and takes no focus, so the first field keeps it.
    this.#focus([...list, target, 0]);
    this.#focus([...list, target, direction]);
  }
}

const rises = (entry, path) => path.at(-1) === "warmup_shape" || (path.at(-3) === "stages" && isRise(valueAt(entry, path.slice(0, -3)), path.at(-2)));

// Two curves of the same structure have the same fields.
function structureOf(curve) {
  return curve && [curve.kind, curve.pairs, curve.plateaus?.length, curve.absolute_plateaus?.length, curve.stages?.length,
    structureOf(curve.curve), structureOf(curve.other)];
}

// True if a message is about the field at the path.
const covers = ({ key, isField }, path) => isField && `${path.join("/")}/`.startsWith(`${key}/`);

// True for the beginning of a number that is not one yet, such as "" and "6e-" on the way to "6e-4".
const isIncomplete = (text) => /^[-+]?\d*\.?\d*(e[-+]?)?$/i.test(text.trim()) && Number.isNaN(Number(text || "."));

// A percentage of the run as steps; null for an empty field; else the text, which the server reads.
function parseField(text, path, entry) {
  if (path.at(-3) === "plateaus") return text.replace(/\s*%$/, "") || null;
  const steps = text.endsWith("%") ? stepsOfRun(text.slice(0, -1), entry, path) : NaN;
  return Number.isFinite(steps) ? steps : text || null;
}
