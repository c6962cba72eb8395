// How the lines of curves look: a colour (page.css) and a dash for each of twelve curves.

import { svgElement } from "./elements.js";

// Curves n and n + 6 share a colour. All dashes differ, so that lines differ without colour vision too.
// The selected curve has a solid line.
export const DASHES = [
  "7 5", "2 3", "12 4", "10 4 2 4", "4 2", "18 4",
  "5 3 1 3", "14 4 2 4 2 4", "3 6", "6 8", "16 8", "2 3 2 9",
];

// The line of a curve, as in the pictures.
/** @param {number} colour @param {boolean} isSelected */
export function swatch(colour, isSelected) {
  const line = svgElement("path", {
    d: "M0 4 H26",
    "stroke-width": isSelected ? 3 : 2,
    "stroke-dasharray": isSelected ? null : DASHES[colour],
  });
  const properties = { class: `swatch colour-${colour}`, width: 26, height: 8, "aria-hidden": "true" };
  return svgElement("svg", properties, line);
}

// The first look that is not taken. Look 0 is grey, which the first curve has at the start, as the
// reference.
export function freeLook(/** @type {number[]} */ taken) {
  const [grey, ...colours] = DASHES.keys();
  return [...colours, grey].find((look) => !taken.includes(look)) ?? grey;
}
