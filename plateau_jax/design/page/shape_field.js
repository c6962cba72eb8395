// The field of a shape: a list to choose from, with a small picture of each shape, and a field for the P of a formula.

import { element, setProperties, svgElement } from "./elements.js";

const WIDTH = 26, HEIGHT = 16, MARGIN = 2;

export class ShapeField {
  #choices;  // of the server: {name, power: the first P of a formula or null, levels: {falling, rising}}
  #direction = "falling";
  #options = new Map();
  #button;
  #beside;  // the picture for browsers that show text alone in a list
  #power;
  #powerRow;
  select;
  node;

  // `properties` are the list's attributes, `powerProperties` those of the field for P. edit(shape) is called with
  // each shape that the user chooses or types.
  constructor(choices, properties, powerProperties, edit) {
    this.#choices = choices;
    this.#button = element("button", {}, picture(), element("span"));
    this.#beside = picture();
    this.#power = element("input", {
      ...powerProperties, inputmode: "decimal", spellcheck: "false",
      input: () => {
        this.#power.defaultValue = this.#power.value;
        edit(withPower(this.select.value, this.#power.value.trim()));
      },
    });
    this.#powerRow = element("span", { class: "power" }, "P = ", this.#power);
    this.select = element("select", {
      ...properties, input: () => edit(withPower(this.select.value, choices.find(({ name }) => name === this.select.value)?.power)),
    }, this.#button);
    for (const { name, levels } of choices) this.#add(name, levels);
    this.node = element("span", { class: "shape" }, this.#beside, this.select);
  }

  // Show a shape that rises or falls; `levels` are those of the shapes in the last valid curve, by name.
  draw(shape, rises, levels, isUndone) {
    const { name, power } = this.#split(shape);
    if (!this.#options.has(name)) this.#add(name, {});  // not of this list: the server says why, and it is not lost
    const direction = rises ? "rising" : "falling";
    if (direction !== this.#direction) {
      this.#direction = direction;
      for (const choice of this.#choices) this.#drawOption(choice.name, choice.levels);
    }
    if (this.select.value !== name) this.select.value = name;
    if (power !== null) this.#drawOption(name, levels[shape]);
    for (const copy of [this.#button.querySelector("svg"), this.#beside]) {
      copy.replaceChildren(this.#options.get(name).querySelector("path").cloneNode());
    }
    this.#button.querySelector("span").textContent = name;
    if (power === null) return this.#powerRow.remove();
    if (!this.#powerRow.isConnected) this.node.append(this.#powerRow);
    if ((this.#power !== document.activeElement || isUndone) && this.#power.value.trim() !== power) this.#power.value = power;
    this.#power.defaultValue = this.#power.value;
  }

  get inputs() {
    return [this.select, this.#power];
  }

  #add(name, levels) {
    const option = element("option", { value: name, "aria-label": name }, picture(), element("span", {}, name));
    this.#options.set(name, option);
    this.#drawOption(name, levels);
    this.select.append(option);
  }

  #drawOption(name, levels) {
    drawLevels(this.#options.get(name).querySelector("svg"), levels?.[this.#direction]);
  }

  // "(1-x)^2" is "(1-x)^P" with P = 2.
  #split(shape) {
    const text = String(shape ?? "");
    const formula = this.#choices.find(({ name, power }) => power !== null && text.startsWith(name.slice(0, -1)));
    return formula ? { name: formula.name, power: text.slice(formula.name.length - 1) } : { name: text, power: null };
  }
}

const withPower = (name, power) => (name.endsWith("P") ? name.slice(0, -1) + (power ?? "") : name);

const picture = () => svgElement("svg", { width: WIDTH, height: HEIGHT, viewBox: `0 0 ${WIDTH} ${HEIGHT}`, "aria-hidden": "true" }, svgElement("path"));

function drawLevels(svg, levels) {
  if (!levels) return svg;
  const x = (index) => MARGIN + (index / (levels.length - 1)) * (WIDTH - 2 * MARGIN);
  const y = (level) => MARGIN + (1 - level) * (HEIGHT - 2 * MARGIN);
  const points = levels.map((level, index) => `${x(index).toFixed(1)},${y(level).toFixed(1)}`).join(" ");
  setProperties(svg.firstChild, { d: points ? `M${points}` : null });
  return svg;
}
