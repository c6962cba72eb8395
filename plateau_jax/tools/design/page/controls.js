// The fields of the selected curve: one per argument of its constructor, with the constructor's
// messages.

import { continuation, cooldown, withNewPlateau, withNewStage } from "./edits.js";
import { element } from "./elements.js";
import { valueAt, withValue } from "./history.js";
import { Messages } from "./messages.js";
import { ShapeField } from "./shape_field.js";

const FIELDS = {  // by the kind of a curve
  plateau: ["total_steps", "warmup_steps", "warmup_shape", "init_lr_ratio", "decay_shape", "min_lr_ratio"],
  staged: ["start"],
  cooldown: ["at", "steps", "to", "shape"],
  then: ["scale"],
  part: ["start", "stop"],
  scaled: ["unit", "reference", "exponent"],
};
/** @type {Record<string, string | undefined>} */
const TITLES = { cooldown: "Cooldown", then: "Continuation", part: "Part", scaled: "Batch plan" };
/** @type {Record<string, string>} */ const LABELS = {
  total_steps: "Total steps",
  warmup_steps: "Warmup steps",
  warmup_shape: "Warmup shape",
  init_lr_ratio: "Initial LR / peak",
  decay_shape: "Decay shape",
  min_lr_ratio: "Final LR / peak",
  start: "Start / peak",
  at: "First step",
  steps: "Steps",
  to: "To / peak",
  shape: "Shape",
  scale: "Scale",
  peak: "Peak learning rate",
  stop: "First step after",
  unit: "Unit",
  reference: "Reference batch",
  exponent: "Exponent",
};

export class Controls {
  #form;
  #listeners;
  /** @type {{ input: HTMLInputElement, path: Path }[]} */ #inputs = [];
  /** @type {{ field: ShapeField, path: Path }[]} */ #shapes = [];
  /** @type {Field[]} */ #fields = [];  // all of them, those of shapes included
  #messages = new Messages();
  /** @type {string | null} */ #structure = null;

  // The shapes that each field can have, from the server: to set before the first drawing.
  /** @type {Record<string, ShapeChoice[]>} */ choices = {};

  /** @param {HTMLFormElement} form @param {ControlsListeners} listeners */
  constructor(form, listeners) {
    this.#form = form;
    this.#listeners = listeners;
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("focusout", () => listeners.leave());
  }

  // Paths start at the entry. The field with the focus keeps its text, so that typing is not
  // disturbed, except after undo and redo.
  /** @param {Entry} entry @param {{ fault?: Message, advice?: Message[], isUndone?: boolean }} messages */
  draw(entry, { fault, advice = [], isUndone = false }) {
    const structure = JSON.stringify([entry.id, structureOf(entry.curve)]);
    if (structure !== this.#structure) this.#build(entry, structure);
    for (const { input, path } of this.#inputs) {
      const value = String(valueAt(entry, path) ?? "");
      const mayChange = input !== document.activeElement || isUndone;
      if (mayChange && input.value.trim() !== value) input.value = value;
      input.defaultValue = input.value;
    }
    for (const { field, path } of this.#shapes) {
      field.draw(valueAt(entry, path), isUndone);
    }
    this.#messages.show(fault, advice, this.#fields);
  }

  // True if a message waits for the end of the typing.
  get isWaiting() {
    return this.#messages.isWaiting;
  }

  /** @param {Entry} entry @param {string} structure */
  #build(entry, structure) {
    this.#structure = structure;
    this.#inputs = [];
    this.#shapes = [];
    this.#fields = [];
    this.#messages.clear();
    const fields = this.#outermost(entry.curve, ["curve"]);
    this.#form.replaceChildren(this.#field(["peak"]), ...fields);
  }

  // Curves

  // The fields of a curve, and the buttons that derive another curve from it.
  /** @param {Curve} curve @param {Path} path @returns {Node[]} */
  #outermost(curve, path) {
    const addCooldown = () => this.#derive(path, cooldown, "at");
    const addContinuation = () => this.#derive(path, continuation, "scale");
    const buttons = element("div", { class: "actions" },
      this.#button("+ Cooldown", [...path, "cooldown"], addCooldown),
      this.#button("+ Continuation", [...path, "continuation"], addContinuation));
    return [...this.#block(curve, path), buttons];
  }

  // The fields of a curve and, recursively, of the curves it is derived from.
  /** @param {Curve} curve @param {Path} path @returns {Node[]} */
  #block(curve, path) {
    const title = TITLES[curve.kind];
    const fields = FIELDS[curve.kind].map((name) => this.#field([...path, name], title));
    const message = this.#messages.slot(path);
    if (title) {
      const parent = this.#block(curve.curve, [...path, "curve"]);
      return [...parent, this.#derivedBlock(title, curve, path, fields), message];
    }
    const rows = curve.kind === "staged" ? this.#stages(curve, path) : this.#plateaus(curve, path);
    return [...fields, rows, message];
  }

  /** @param {string} title @param {Curve} curve @param {Path} path @param {Child[]} fields */
  #derivedBlock(title, curve, path, fields) {
    const removeCurve = () => this.#change(path, ({ curve: parent }) => parent);
    const label = `Remove the ${title.toLowerCase()}`;
    const remove = this.#button("×", [...path, "remove"], removeCurve, { label });
    const legend = element("legend", {}, element("span", { class: "legend" }, title, remove));
    return element("fieldset", {}, legend, batchesOf(curve), ...fields, this.#other(curve, path));
  }

  // The curve that continues another one; null for curves without one.
  /** @param {Curve} curve @param {Path} path */
  #other({ other }, path) {
    if (!other) return null;
    const fields = this.#outermost(other, [...path, "other"]);
    return element("fieldset", { "aria-label": "The continuing curve" }, ...fields);
  }

  /** @param {Curve} curve @param {Path} path */
  #plateaus(curve, path) {
    const addButtons = element("div", { class: "actions" },
      this.#addPlateauButton("+ Plateau, in %", path, "plateaus"),
      this.#addPlateauButton("+ in steps", path, "absolute_plateaus"));
    return element("fieldset", {},
      element("legend", {}, "Plateaus"),
      this.#plateauTable(curve.plateaus, [...path, "plateaus"], "%"),
      this.#messages.slot([...path, "plateaus"]),
      this.#plateauTable(curve.absolute_plateaus, [...path, "absolute_plateaus"], "steps"),
      this.#messages.slot([...path, "absolute_plateaus"]),
      addButtons);
  }

  /** @param {unknown[]} plateaus @param {Path} list @param {string} measure */
  #plateauTable(plateaus, list, measure) {
    if (!plateaus.length) return null;
    const rows = plateaus.map((_, index) => {
      const name = `${index + 1} in ${measure}`;
      const labels = [`Plateau ${name}, start`, `Plateau ${name}, length`];
      const remove = this.#removeButton(list, index, `Remove plateau ${name}`);
      return this.#row([...list, index], null, labels, [remove]);
    });
    return table(["", `Start, ${measure}`, `Length, ${measure}`, ""], rows);
  }

  /** @param {string} text @param {Path} path @param {"plateaus" | "absolute_plateaus"} list */
  #addPlateauButton(text, path, list) {
    return this.#button(text, [...path, list, "add"], () => {
      const count = valueAt(this.#listeners.entry(), [...path, list]).length;
      this.#change(path, (curve) => ({ ...curve, [list]: withNewPlateau(curve, list) }));
      this.#focus([...path, list, count, 0]);
    });
  }

  /** @param {Curve} curve @param {Path} path */
  #stages({ stages }, path) {
    const list = [...path, "stages"];
    const rows = stages.map((_, index) => this.#stageRow(list, index, stages.length));
    const hint = "“To” is a fraction of the peak; if it is empty, the stage is a plateau.";
    const add = this.#button("+ Stage", [...list, "add"], () => {
      const [changed, index] = withNewStage(valueAt(this.#listeners.entry(), path));
      this.#change(list, () => changed);
      this.#focus([...list, index, 0]);
    });
    return element("fieldset", {},
      element("legend", {}, "Stages"),
      table(["", "Steps", "To", "Shape", ""], rows),
      this.#messages.slot(list),
      element("p", { class: "caveat" }, hint),
      element("div", { class: "actions" }, add));
  }

  /** @param {Path} list @param {number} index @param {number} count */
  #stageRow(list, index, count) {
    const name = `stage ${index + 1}`;
    const labels = ["steps", "to", "shape"].map((part) => `Stage ${index + 1}, ${part}`);
    /** @param {string} arrow @param {string} direction @param {number} offset @param {boolean} isAtEnd */
    const move = (arrow, direction, offset, isAtEnd) => {
      const click = () => this.#moveItem(list, index, direction, offset);
      const label = `Move ${name} ${direction}`;
      return this.#button(arrow, [...list, index, direction], click, { label, disabled: isAtEnd });
    };
    return this.#row([...list, index], index + 1, labels, [
      move("↑", "up", -1, index === 0),
      move("↓", "down", 1, index === count - 1),
      this.#removeButton(list, index, `Remove ${name}`, { disabled: count === 1 }),
    ]);
  }

  // Fields

  // A field of a curve, with its label. `group` is the title of a derived curve.
  /** @param {Path} path @param {string | null} group */
  #field(path, group = null) {
    const name = String(path.at(-1));
    const text = group === TITLES.part && name === "start" ? LABELS.at : LABELS[name];
    const label = group ? `${group}: ${text}` : text;
    const input = name in this.choices ? this.#shape(path, name, label) : this.#input(path, label);
    return element("label", { class: "field" }, element("span", {}, text), input, this.#messages.slot(path));
  }

  // A row of a table, with a number or null, and a row for the messages about it. The third field of a
  // stage is its shape.
  /** @param {Path} path @param {number | null} number @param {string[]} labels @param {Child[]} actions */
  #row(path, number, labels, actions) {
    const head = number === null ? element("td") : element("th", { scope: "row" }, String(number));
    const cells = labels.map((label, item) => {
      const place = [...path, item];
      return element("td", {}, item === 2 ? this.#shape(place, "shape", label) : this.#input(place, label));
    });
    const moves = element("td", { class: "moves" }, ...actions);
    const message = element("td", { colspan: labels.length + 2 }, this.#messages.slot(path));
    return [element("tr", {}, head, ...cells, moves), element("tr", {}, message)];
  }

  /** @param {Path} path @param {string} label */
  #input(path, label) {
    const input = element("input", {
      "aria-label": label,
      "data-path": path.join("/"),
      spellcheck: "false",
      autocapitalize: "off",
      inputmode: "decimal",
      input: () => {
        input.defaultValue = input.value;
        this.#listeners.edit(path, typedValue(input.value.trim(), path));
      },
    });
    this.#inputs.push({ input, path });
    this.#fields.push({ input, path });
    return input;
  }

  /** @param {Path} path @param {string} name @param {string} label */
  #shape(path, name, label) {
    const edit = (/** @type {string} */ shape) => this.#listeners.edit(path, shape);
    const field = new ShapeField(this.choices[name], path, label, edit);
    this.#shapes.push({ field, path });
    this.#fields.push({ input: field.select, path }, { input: field.power, path });
    return field.node;
  }

  // The path identifies the button when it is drawn anew. A button without a label has a border and
  // its text.
  /** @param {string} text @param {Path} path @param {() => void} click @param {{ label?: string | null, disabled?: boolean }} options */
  #button(text, path, click, { label = null, disabled = false } = {}) {
    return element("button", {
      type: "button",
      class: label ? "plain" : null,
      "data-path": path.join("/"),
      "aria-label": label,
      title: label,
      disabled,
      click,
    }, text);
  }

  /** @param {Path} list @param {number} index @param {string} label */
  #removeButton(list, index, label, { disabled = false } = {}) {
    const remove = () => this.#change(list, (items) => items.toSpliced(index, 1));
    return this.#button("×", [...list, index, "remove"], remove, { label, disabled });
  }

  // Changes

  // Replace the part of the entry at a path.
  /** @param {Path} path @param {(part: any) => any} change */
  #change(path, change) {
    this.#listeners.restructure((entry) => withValue(entry, path, change(valueAt(entry, path))));
  }

  // Replace a curve by one that is derived from it, and focus on a field of that.
  /** @param {Path} path @param {(curve: Curve) => object} derive @param {string} firstField */
  #derive(path, derive, firstField) {
    this.#change(path, derive);
    this.#focus([...path, firstField]);
  }

  // Swap an item with its neighbour. The focus follows the item.
  /** @param {Path} list @param {number} index @param {string} direction @param {number} offset */
  #moveItem(list, index, direction, offset) {
    const target = index + offset;
    this.#change(list, (items) => items.with(index, items[target]).with(target, items[index]));
    // At the end of the list the button is disabled and takes no focus, so the first field keeps it.
    this.#focus([...list, target, 0]);
    this.#focus([...list, target, direction]);
  }

  #focus(/** @type {Path} */ path) {
    const control = this.#form.querySelector(`[data-path="${CSS.escape(path.join("/"))}"]`);
    /** @type {Control | null} */ (control)?.focus();
  }
}

/** @param {string[]} heads @param {Node[][]} rows */
function table(heads, rows) {
  const cells = heads.map((text) => (text ? element("th", { scope: "col" }, text) : element("td")));
  return element("table", { class: "rows" },
    element("thead", {}, element("tr", {}, ...cells)),
    element("tbody", {}, ...rows.flat()));
}

// The batches of a batch plan, which have no fields; null for other curves.
function batchesOf(/** @type {Curve} */ { pairs }) {
  if (!pairs?.length) return null;
  const batches = pairs.map(([threshold, batch]) => `${batch} from ${threshold}`).join(", ");
  return element("p", { class: "caveat" }, `Batches: ${batches}. Change them in the JSON.`);
}

// Two curves of the same structure have the same fields.
/** @param {Curve} curve @returns {unknown} */
function structureOf(curve) {
  return curve && [
    curve.kind,
    curve.pairs,
    curve.plateaus?.length,
    curve.absolute_plateaus?.length,
    curve.stages?.length,
    structureOf(curve.curve),
    structureOf(curve.other),
  ];
}

// What was typed, which the server reads; null for an empty field.
/** @param {string} text @param {Path} path */
function typedValue(text, path) {
  const isPercentage = path.at(-3) === "plateaus";
  return (isPercentage ? text.replace(/\s*%$/, "") : text) || null;
}
