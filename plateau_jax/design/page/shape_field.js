// The field of a shape: a list to choose from, with a small picture of each shape, and a field for the P of a formula.

import { element, svgElement } from "./elements.js";

const WIDTH = 26, HEIGHT = 16, MARGIN = 2;

export class ShapeField {
  #choices;  // of the server: {name, power: the first P of a formula or null, levels: {falling, rising}}
  #direction;
  #powerRow;
  power;
  select;
  node;

  // `properties` are the list's attributes, `powerProperties` those of the field for P. edit(shape) is called with
  // each shape that the user chooses or types.
  constructor(choices, properties, powerProperties, edit) {
    this.#choices = choices;
    this.power = element("input", {
      ...powerProperties, inputmode: "decimal", spellcheck: "false",
      input: () => {
        this.power.defaultValue = this.power.value;
        edit(this.select.value.replace("P", this.power.value.trim()));
      },
    });
    this.#powerRow = element("span", { class: "power" }, "P = ", this.power);
    this.select = element("select", { ...properties, input: () => {
      const { name, power } = choices.find(({ name }) => name === this.select.value);
      edit(name.replace("P", power ?? ""));
    } });
    this.node = element("span", { class: "shape" }, this.select, this.#powerRow);
  }

  // Show a shape that rises or falls. "(1-x)^2" is "(1-x)^P" with P = 2.
  draw(shape, rises, isUndone) {
    const direction = rises ? "rising" : "falling";
    if (direction !== this.#direction) {
      this.#direction = direction;
      // Where a list can hold pictures, <selectedcontent> shows the chosen shape's in the closed list.
      this.select.replaceChildren(element("button", {}, element("selectedcontent")), ...this.#choices.map(({ name, levels }) =>
        element("option", { value: name, "aria-label": name }, drawing(levels[direction]), element("span", {}, name))));
    }
    const formula = this.#choices.find(({ name }) => name.endsWith("P") && shape.startsWith(name.slice(0, -1)))?.name;
    const power = formula ? shape.slice(formula.length - 1) : "";
    this.select.value = formula ?? shape;
    this.#powerRow.hidden = !formula;
    if ((this.power !== document.activeElement || isUndone) && this.power.value.trim() !== power) this.power.value = power;
    this.power.defaultValue = this.power.value;
  }
}

function drawing(levels) {
  const x = (index) => MARGIN + (index / (levels.length - 1)) * (WIDTH - 2 * MARGIN);
  const y = (level) => MARGIN + (1 - level) * (HEIGHT - 2 * MARGIN);
  const points = levels.map((level, index) => `${x(index).toFixed(1)},${y(level).toFixed(1)}`).join(" ");
  return svgElement("svg", { width: WIDTH, height: HEIGHT, "aria-hidden": "true" }, svgElement("path", { d: `M${points}` }));
}
