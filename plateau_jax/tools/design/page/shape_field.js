// The field of a shape: a list to choose from, with a small picture of each shape, and a field for
// the P of a formula.

import { element, svgElement } from "./elements.js";

const WIDTH = 26;
const HEIGHT = 16;
const MARGIN = 2;

export class ShapeField {
  #choices;  // of the server: {name, power: the first P of a formula or null, levels: {falling, rising}}
  #direction;
  #powerRow;
  power;
  select;
  node;

  // `properties` are the list's attributes, `powerProperties` those of the field for P. edit(shape)
  // is called with each shape that the user chooses or types.
  constructor(choices, properties, powerProperties, edit) {
    this.#choices = choices;
    this.power = element("input", {
      ...powerProperties,
      inputmode: "decimal",
      spellcheck: "false",
      input: () => {
        this.power.defaultValue = this.power.value;
        edit(this.select.value.replace("P", this.power.value.trim()));
      },
    });
    this.select = element("select", {
      ...properties,
      input: () => {
        const { name, power } = choices.find((choice) => choice.name === this.select.value);
        edit(name.replace("P", power ?? ""));
      },
    });
    this.#powerRow = element("span", { class: "power" }, "P = ", this.power);
    this.node = element("span", { class: "shape" }, this.select, this.#powerRow);
  }

  // Show a shape that rises or falls. "(1-x)^2" is "(1-x)^P" with P = 2.
  draw(shape, { rises, isUndone }) {
    this.#drawChoices(rises ? "rising" : "falling");
    const formula = this.#choices.map(({ name }) => name).find((name) => isOfFormula(shape, name));
    this.select.value = formula ?? shape;
    this.#powerRow.hidden = !formula;
    this.#drawPower(formula ? shape.slice(formula.length - 1) : "", isUndone);
  }

  #drawChoices(direction) {
    if (direction === this.#direction) return;
    this.#direction = direction;
    // Where a list can hold pictures, <selectedcontent> shows the chosen shape's in the closed list.
    const shown = element("button", {}, element("selectedcontent"));
    const options = this.#choices.map(({ name, levels }) => {
      const picture = drawing(levels[direction]);
      return element("option", { value: name, "aria-label": name }, picture, element("span", {}, name));
    });
    this.select.replaceChildren(shown, ...options);
  }

  // While the user types, the field keeps its text, except after undo and redo.
  #drawPower(power, isUndone) {
    const mayChange = this.power !== document.activeElement || isUndone;
    if (mayChange && this.power.value.trim() !== power) this.power.value = power;
    this.power.defaultValue = this.power.value;
  }
}

const isOfFormula = (shape, name) => name.endsWith("P") && shape.startsWith(name.slice(0, -1));

function drawing(levels) {
  const x = (index) => MARGIN + (index / (levels.length - 1)) * (WIDTH - 2 * MARGIN);
  const y = (level) => MARGIN + (1 - level) * (HEIGHT - 2 * MARGIN);
  const points = levels.map((level, index) => `${x(index).toFixed(1)},${y(level).toFixed(1)}`);
  const path = svgElement("path", { d: `M${points.join(" ")}` });
  return svgElement("svg", { width: WIDTH, height: HEIGHT, "aria-hidden": "true" }, path);
}
