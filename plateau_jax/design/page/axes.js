// The axes of both pictures. Their margins are the same, so that a step has the same place in both.

import { formatStep, svgElement } from "./elements.js";

const LEFT = 58, RIGHT = 22, TOP = 20, BOTTOM = 40;  // margins, in pixels

// A picture of values from `low` to `high`, above the steps from 0 to `end`.
export class Axes {
  left = LEFT;
  top = TOP;

  constructor(svg, end, low, high) {
    const box = svg.getBoundingClientRect();
    Object.assign(this, { end, low, high, width: box.width - LEFT - RIGHT, height: box.height - TOP - BOTTOM });
    this.bottom = TOP + this.height;
  }

  x(step) {
    return LEFT + (step / this.end) * this.width;
  }

  y(value) {
    return TOP + ((this.high - value) / (this.high - this.low)) * this.height;
  }

  // The points of a line, each as "x,y".
  points(steps, values) {
    return steps.map((step, index) => `${this.x(step).toFixed(1)},${this.y(values[index]).toFixed(1)}`);
  }

  // The lines and labels of the axes; format(value) is the label of a value.
  *draw(title, format) {
    const { bottom, width } = this;
    yield label(title, { class: "axis-title", x: 6, y: 11 });
    yield label("step", { class: "axis-title", x: LEFT - 12, y: bottom + 30, "text-anchor": "end" });
    for (const value of ticks(this.low, this.high, this.height / 40)) {
      yield svgElement("line", { class: "grid", x1: LEFT, x2: LEFT + width, y1: this.y(value), y2: this.y(value) });
      yield label(format(value), { x: LEFT - 12, y: this.y(value) + 4, "text-anchor": "end" });
    }
    yield svgElement("line", { class: "axis", x1: LEFT, x2: LEFT + width, y1: bottom, y2: bottom });
    for (const step of ticks(0, this.end, width / 92, 1)) {
      yield svgElement("line", { class: "axis", x1: this.x(step), x2: this.x(step), y1: bottom, y2: bottom + 4 });
      yield label(formatStep(step), { x: this.x(step), y: bottom + 30, "text-anchor": step ? "middle" : "start" });
    }
  }
}

const label = (text, properties) => svgElement("text", { class: "tick", ...properties }, text);

// About `count` round numbers (2 to 8) from `begin` to `end`, such as 0, 2000, 4000, 6000 for (0, 7500, 4), at least
// `least` apart.
function ticks(begin, end, count, least = 0) {
  const minSpacing = (end - begin) / Math.max(2, Math.min(count, 8));
  const power = 10 ** Math.floor(Math.log10(minSpacing));
  const spacing = Math.max(least, [1, 2, 5, 10].map((times) => times * power).find((size) => size >= minSpacing * 0.999));
  const first = Math.ceil(begin / spacing);
  return Array.from({ length: Math.floor(end / spacing) - first + 1 }, (_, index) => Number(((first + index) * spacing).toPrecision(6)));
}
