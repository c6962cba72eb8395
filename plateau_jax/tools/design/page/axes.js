// The axes of the picture.

import { formatLearningRate, formatStep, svgElement } from "./elements.js";

// The margins, in pixels.
const LEFT = 58;
const RIGHT = 22;
const TOP = 20;
const BOTTOM = 40;

// Learning rates from 0 to `high`, above the steps from 0 to `end`.
export class Axes {
  left = LEFT;
  top = TOP;

  /** @param {SVGElement} svg @param {number} end @param {number} high */
  constructor(svg, end, high) {
    const box = svg.getBoundingClientRect();
    this.end = end;
    this.high = high;
    this.width = box.width - LEFT - RIGHT;
    this.height = box.height - TOP - BOTTOM;
    this.bottom = TOP + this.height;
  }

  x(/** @type {number} */ step) {
    return LEFT + (step / this.end) * this.width;
  }

  y(/** @type {number} */ lr) {
    return TOP + (1 - lr / this.high) * this.height;
  }

  // The lines and labels of the axes.
  *draw() {
    yield label("learning rate", { class: "axis-title", x: 6, y: 11 });
    yield* this.#drawLearningRates();
    yield* this.#drawSteps();
  }

  *#drawLearningRates() {
    for (const lr of ticks(this.high, this.height / 40)) {
      const y = this.y(lr);
      yield svgElement("line", { class: "grid", x1: LEFT, x2: LEFT + this.width, y1: y, y2: y });
      yield label(formatLearningRate(lr), { x: LEFT - 12, y: y + 4, "text-anchor": "end" });
    }
  }

  *#drawSteps() {
    const { bottom } = this;
    const labelY = bottom + 30;
    yield label("step", { class: "axis-title", x: LEFT - 12, y: labelY, "text-anchor": "end" });
    yield svgElement("line", { class: "axis", x1: LEFT, x2: LEFT + this.width, y1: bottom, y2: bottom });
    for (const step of ticks(this.end, this.width / 92, 1)) {
      const x = this.x(step);
      yield svgElement("line", { class: "axis", x1: x, x2: x, y1: bottom, y2: bottom + 4 });
      yield label(formatStep(step), { x, y: labelY, "text-anchor": step ? "middle" : "start" });
    }
  }
}

/** @param {string} text @param {Properties} properties */
const label = (text, properties) => svgElement("text", { class: "tick", ...properties }, text);

// About `count` round numbers (2 to 8) from 0 to `end`, such as 0, 2000, 4000, 6000 for (7500, 4), at
// least `least` apart.
/** @param {number} end @param {number} count */
function ticks(end, count, least = 0) {
  const minSpacing = end / Math.max(2, Math.min(count, 8));
  const power = 10 ** Math.floor(Math.log10(minSpacing));
  const sizes = [1, 2, 5, 10].map((times) => times * power);
  const spacing = Math.max(least, sizes.find((size) => size >= minSpacing * 0.999) ?? minSpacing);
  const round = [];
  for (let multiple = 0; multiple <= Math.floor(end / spacing); multiple += 1) {
    round.push(Number((multiple * spacing).toPrecision(6)));
  }
  return round;
}
