// The axes of both pictures: margins, so that a step has the same place in both, and round numbers with their labels.

import { svgElement } from "./elements.js";

// Margins to the left and to the right, in pixels.
export const LEFT = 58, RIGHT = 22;

export function tickLabel(text, properties) {
  const label = svgElement("text", { class: "tick", ...properties });
  label.textContent = text;
  return label;
}

export const axisTitle = (text, properties) => tickLabel(text, { class: "axis-title", ...properties });

// About `count` round numbers (2 to 8) from `begin` to `end`, such as 0, 2000, 4000, 6000 for (0, 7500, 4), at least
// `least` apart.
export function ticks(begin, end, count, least = 0) {
  const minSpacing = (end - begin) / Math.max(2, Math.min(count, 8));
  const power = 10 ** Math.floor(Math.log10(minSpacing));
  const spacing = Math.max(least, [1, 2, 5, 10].map((times) => times * power).find((size) => size >= minSpacing * 0.999));
  const first = Math.ceil(begin / spacing);
  return Array.from({ length: Math.floor(end / spacing) - first + 1 }, (_, index) => Number(((first + index) * spacing).toPrecision(6)));
}
