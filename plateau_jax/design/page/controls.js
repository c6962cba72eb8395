// The fields of the chosen curve: one for each argument of its constructor, and the constructor's own messages.

import { element, set } from "./elements.js";
import { at } from "./history.js";

const LABELS = {
  total_steps: "Total steps", warmup_steps: "Warmup steps", warmup_shape: "Warmup shape",
  init_lr_ratio: "First rate, share of peak", decay_shape: "Decay shape", min_lr_ratio: "Last rate, share of peak",
  start: "Start, share of peak", at: "First step", steps: "Steps", to: "To, share of peak", shape: "Shape",
  scale: "Scale", peak: "Peak learning rate",
};
const LISTS = { warmup_shape: "warmup-shapes", decay_shape: "decay-shapes", shape: "shapes" };

export class Controls {
  #form;
  #listeners;
  #inputs = [];
  #slots = new Map();
  #structure = null;

  // listeners.edit(path, value) for one field, listeners.restructure(change) for rows and blocks,
  // listeners.pause() when a field is left.
  constructor(form, listeners) {
    this.#form = form;
    this.#listeners = listeners;
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("focusout", () => listeners.pause());
  }

  // `entry` is {id, name, peak, curve}; paths begin there. A field that is being typed in keeps its text.
  draw(entry, { fault = null, advice = [], isUndone = false }) {
    const structure = JSON.stringify([entry.id, shapeOf(entry.curve)]);
    if (structure !== this.#structure) this.#rebuild(entry, structure);
    for (const { input, path } of this.#inputs) {
      const value = at(entry, path);
      if ((input !== document.activeElement || isUndone) && read(input.value) !== value) input.value = value ?? "";
    }
    this.#showFault(fault);
    const said = this.#slots.get("advice");
    if (said.textContent !== advice.join("")) {
      said.replaceChildren(...advice.map((text) => element("p", { class: "advice" }, text)));
    }
  }

  focus(path) {
    this.#form.querySelector(`[data-path="${CSS.escape(path.join("/"))}"]`)?.focus();
  }

  #rebuild(entry, structure) {
    const focused = document.activeElement?.dataset?.path;
    this.#structure = structure;
    this.#inputs = [];
    this.#slots = new Map();
    const advice = element("div", { role: "status" });
    this.#slots.set("advice", advice);
    this.#form.replaceChildren(this.#field(["peak"]), advice, ...this.#block(entry.curve, ["curve"], true));
    if (focused) this.focus(focused.split("/"));
  }

  // The fields of a curve, and of the curves that it is made of.
  #block(curve, path, isOutermost = false) {
    const fields = { undefined: () => this.#plateauCurve(curve, path), staged: () => this.#staged(curve, path),
      cooldown: () => this.#cooldown(curve, path), then: () => this.#continuation(curve, path) };
    const found = (fields[curve?.kind] ?? (() => []))();
    const own = [this.#slot(path), ...found];
    if (!isOutermost && path.at(-1) === "curve") return own;
    return [...own, element("div", { class: "actions" },
      this.#button("+ Cooldown", () => this.#wrap(path, cooldown)),
      this.#button("+ Continuation", () => this.#wrap(path, continuation)))];
  }

  #plateauCurve(curve, path) {
    const plateaus = ["plateaus", "absolute_plateaus"].map((name) => {
      const unit = name === "plateaus" ? "%" : "steps";
      const rows = (curve[name] ?? []).map((_, index) => ({
        cells: [[...path, name, index, 0], [...path, name, index, 1]],
        labels: [`Plateau ${index + 1} in ${unit}, start`, `Plateau ${index + 1} in ${unit}, length`],
        path: [...path, name, index],
        actions: [this.#button("×", () => this.#without([...path, name], index), `Remove plateau ${index + 1} in ${unit}`)],
      }));
      return [this.#slot([...path, name]), ...(rows.length ? [this.#table(["", `Start, ${unit}`, `Length, ${unit}`, ""], rows)] : [])];
    });
    return [
      ...["total_steps", "warmup_steps", "warmup_shape", "init_lr_ratio", "decay_shape", "min_lr_ratio"]
        .map((name) => this.#field([...path, name])),
      element("fieldset", {}, element("legend", {}, "Plateaus"),
        ...plateaus.flat(),
        element("div", { class: "actions" },
          this.#button("+ Plateau, in %", () => this.#with([...path, "plateaus"], roomFor(curve))),
          this.#button("+ in steps", () => this.#with([...path, "absolute_plateaus"], stepsFor(curve))))),
    ];
  }

  #staged(curve, path) {
    const stages = Array.isArray(curve.stages) ? curve.stages : [];
    const name = (index, what) => `Stage ${index + 1}, ${what}`;
    const rows = stages.map((_, index) => ({
      cells: [0, 1, 2].map((item) => [...path, "stages", index, item]),
      labels: ["steps", "to", "shape"].map((what) => name(index, what)),
      path: [...path, "stages", index],
      actions: [
        ...[["↑", "up", -1, 0], ["↓", "down", 1, stages.length - 1]].map(([sign, way, by, end]) => set(
          this.#button(sign, () => this.#swap([...path, "stages"], index, way, by), `Move stage ${index + 1} ${way}`, index === end),
          { "data-path": [...path, "stages", index, way].join("/") })),
        this.#button("×", () => this.#without([...path, "stages"], index), `Remove stage ${index + 1}`, stages.length === 1),
      ],
    }));
    return [
      this.#field([...path, "start"]),
      element("fieldset", {}, element("legend", {}, "Stages"), this.#slot([...path, "stages"]),
        this.#table(["", "Steps", "To", "Shape", ""], rows),
        element("p", { class: "caveat" }, "“To” is a share of the peak; left empty, the stage stays at its level."),
        element("div", { class: "actions" },
          this.#button("+ Stage", () => this.#with([...path, "stages"], [Math.max(1, Math.round(stepsOf(curve) / 5)), null, "linear"])))),
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
        element("fieldset", { "aria-label": "What continues" }, ...this.#block(curve.other, [...path, "other"])),
      ])];
  }

  #group(title, path, children) {
    const remove = this.#button("×", () => this.#listeners.restructure((entry) => put(entry, path, at(entry, path).curve)), `Remove the ${title.toLowerCase()}`);
    return element("fieldset", {}, element("legend", {}, element("span", { class: "legend" }, title, remove)), ...children);
  }

  #field(path, group = "") {
    const name = path.at(-1);
    const label = element("span", {}, LABELS[name]);
    const input = this.#input(path, { list: LISTS[name] ?? null, "aria-label": group ? `${group}: ${LABELS[name]}` : null });
    return element("label", { class: "field" }, label, input, this.#slot(path));
  }

  #table(heads, rows) {
    const body = rows.flatMap(({ cells, labels, path, actions }, index) => [
      element("tr", {}, element("td", {}, String(index + 1)),
        ...cells.map((cell, item) => element("td", {}, this.#input(cell, { "aria-label": labels[item], list: item === 2 ? "shapes" : null }))),
        element("td", { class: "moves" }, ...actions)),
      element("tr", {}, element("td", { colspan: heads.length }, this.#slot(path))),
    ]);
    return element("table", { class: "rows" },
      element("thead", {}, element("tr", {}, ...heads.map((text) => element("th", { scope: "col" }, text)))),
      element("tbody", {}, ...body));
  }

  #input(path, properties) {
    const input = element("input", {
      ...properties, "data-path": path.join("/"), spellcheck: "false", autocapitalize: "off",
      inputmode: properties.list ? null : "decimal",
      input: () => this.#listeners.edit(path, read(input.value)),
    });
    this.#inputs.push({ input, path });
    return input;
  }

  #slot(path) {
    const key = path.join("/");
    const slot = element("p", { class: "fault", id: `fault-${key.replaceAll("/", "-")}`, role: "alert" });
    this.#slots.set(key, slot);
    return slot;
  }

  #button(text, click, label = null, disabled = false) {
    const look = label ? "plain" : null;
    return element("button", { type: "button", class: look, "aria-label": label, title: label, disabled, click }, text);
  }

  #showFault(fault) {
    const known = fault === null ? null : this.#slotOf(fault);
    for (const slot of this.#slots.values()) {
      const text = slot === known?.slot ? fault.message : "";
      // A message that stays is not said again.
      if (slot.classList.contains("fault") && slot.textContent !== text) slot.textContent = text;
    }
    for (const { input, path } of this.#inputs) {
      const isWrong = known !== null && known.isField && `${path.join("/")}/`.startsWith(`${known.key}/`);
      set(input, { "aria-invalid": isWrong ? "true" : null, "aria-describedby": isWrong ? known.slot.id : null });
    }
  }

  // The slot beside the field, or the nearest one around it.
  #slotOf({ path, field, index }) {
    const own = field === "peak" ? ["peak"] : ["curve", ...path];
    const places = [];
    if (field && field !== "peak" && index !== null) places.push([...own, field, index]);
    if (field && field !== "peak") places.push([...own, field]);
    for (let length = own.length; length > 0; length -= 1) places.push(own.slice(0, length));
    for (const place of places) {
      const key = place.join("/");
      if (this.#slots.has(key)) return { key, slot: this.#slots.get(key), isField: place.length > own.length || field === "peak" };
    }
    return null;
  }

  #wrap(path, around) {
    this.#listeners.restructure((entry) => put(entry, path, around(at(entry, path))));
  }

  #with(path, item) {
    const index = (at(this.#listeners.entry(), path) ?? []).length;
    this.#listeners.restructure((entry) => put(entry, path, [...(at(entry, path) ?? []), item]));
    this.focus([...path, index, 0]);
  }

  #without(path, index) {
    this.#listeners.restructure((entry) => put(entry, path, at(entry, path).filter((_, other) => other !== index)));
  }

  // The focus stays with the stage that is moved.
  #swap(path, index, way, by) {
    const other = index + by;
    this.#listeners.restructure((entry) => {
      const items = [...at(entry, path)];
      [items[index], items[other]] = [items[other], items[index]];
      return put(entry, path, items);
    });
    this.focus([...path, other, 0]);
    this.focus([...path, other, way]);  // not where it is disabled, at the end
  }
}

function put(entry, path, value) {
  const copy = structuredClone(entry);
  at(copy, path.slice(0, -1))[path.at(-1)] = value;
  return copy;
}

// What decides which fields there are.
function shapeOf(curve) {
  if (curve === null || typeof curve !== "object") return null;
  return [curve.kind, curve.plateaus?.length, curve.absolute_plateaus?.length, curve.stages?.length,
    "curve" in curve ? shapeOf(curve.curve) : 0, "other" in curve ? shapeOf(curve.other) : 0];
}

// A number where the text is one, nothing where it is empty; else the text, for the constructor to refuse.
export function read(text) {
  const plain = text.trim().replace(/(?<=\d)[_\s\u202f](?=\d)/g, "");
  if (plain === "") return null;
  const isNumber = /^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/i.test(plain) && Number.isFinite(Number(plain));
  return isNumber ? Number(plain) : text.trim();
}

// Steps of a curve as it is described, to make a first guess for what is added to it.
export function stepsOf(curve) {
  const sum = (steps) => steps.reduce((total, step) => total + (Number(step) || 0), 0);
  const known = { undefined: () => Number(curve.total_steps) || 0, staged: () => sum(curve.stages.map(([steps]) => steps)),
    cooldown: () => sum([curve.at, curve.steps]), then: () => stepsOf(curve.curve) + stepsOf(curve.other) };
  return known[curve?.kind]?.() ?? 0;
}

const cooldown = (curve) => ({ kind: "cooldown", curve, at: Math.round(stepsOf(curve) * 0.6),
  steps: Math.max(1, Math.round(stepsOf(curve) * 0.2)), to: 0, shape: "1-sqrt" });

const continuation = (curve) => ({ kind: "then", curve, other: structuredClone(curve), scale: 0.5 });

// A plateau that fits into the widest gap between those in percent.
function roomFor({ plateaus = [] }) {
  const taken = [[0, 0], ...plateaus.filter((pair) => pair?.every(Number.isFinite)), [100, 0]].sort((one, other) => one[0] - other[0]);
  const gaps = taken.slice(1).map(([start], at) => [taken[at][0] + taken[at][1], start]);
  const [from, to] = gaps.reduce((widest, gap) => (gap[1] - gap[0] > widest[1] - widest[0] ? gap : widest));
  const length = Math.min(20, (to - from) / 2);
  return [Math.round((from + (to - from - length) / 2) * 10) / 10, Math.round(length * 10) / 10];
}

const stepsFor = (curve) => [Math.round(stepsOf(curve) * 0.85), Math.max(1, Math.round(stepsOf(curve) * 0.05))];
