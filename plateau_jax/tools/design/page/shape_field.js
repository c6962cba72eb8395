// The field of a shape: a list to choose from, and a field for the P of a formula.

import { element } from "./elements.js";

export class ShapeField {
  #choices;  // of the server: {name, power: the first P of a formula or null}
  #powerRow;
  power;
  select;
  node;

  // edit(shape) is called with each shape that the user chooses or types.
  /** @param {ShapeChoice[]} choices @param {Path} path @param {string} label @param {(shape: string) => void} edit */
  constructor(choices, path, label, edit) {
    this.#choices = choices;
    this.power = element("input", {
      "aria-label": label.replace(/shape/i, "P"),
      "data-path": [...path, "power"].join("/"),
      inputmode: "decimal",
      spellcheck: "false",
      input: () => {
        this.power.defaultValue = this.power.value;
        edit(this.select.value.replace("P", this.power.value.trim()));
      },
    });
    this.select = element("select", {
      "aria-label": label,
      "data-path": path.join("/"),
      input: () => {
        const chosen = choices.find(({ name }) => name === this.select.value);
        edit(this.select.value.replace("P", chosen?.power ?? ""));
      },
    }, ...choices.map(({ name }) => element("option", { value: name }, name)));
    this.#powerRow = element("span", { class: "power" }, "P = ", this.power);
    this.node = element("span", { class: "shape" }, this.select, this.#powerRow);
  }

  // Show a shape. "(1-x)^2" is "(1-x)^P" with P = 2. While the user types P, its field keeps its
  // text, except after undo and redo.
  /** @param {string} shape @param {boolean} isUndone */
  draw(shape, isUndone) {
    const formula = this.#choices.map(({ name }) => name).find((name) => isOfFormula(shape, name));
    this.select.value = formula ?? shape;
    this.#powerRow.hidden = !formula;
    const power = formula ? shape.slice(formula.length - 1) : "";
    const mayChange = this.power !== document.activeElement || isUndone;
    if (mayChange && this.power.value.trim() !== power) this.power.value = power;
    this.power.defaultValue = this.power.value;
  }
}

/** @param {string} shape @param {string} name */
const isOfFormula = (shape, name) => name.endsWith("P") && shape.startsWith(name.slice(0, -1));
