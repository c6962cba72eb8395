// What follows from a handle and its curve: the units in which it moves, its text and its look.
// A handle of the server is {name, path, axis, step, level, value, low, high}: a point on the picture, and the number
// that moves with it. The path is that of a field of the entry, or of a plateau for the handle that moves all of it.

import { formatStep } from "./elements.js";
import { valueAt } from "./history.js";
import { plateauInSteps } from "./parts.js";

const PLATEAUS = ["plateaus", "absolute_plateaus"];
export const isPlateau = ({ path }) => PLATEAUS.includes(path.at(-2));  // all of it
export const isOfPlateau = ({ path }) => PLATEAUS.includes(path.at(-3));  // its start or its end

// The handle with its `look`; its `text`; the `unit` that dragging and the arrow keys round to, and the `smallUnit` of
// Shift; and `valuePerUnit`, the change of its value per unit along its axis. `answer` describes its curve.
export function completeHandle(handle, answer) {
  return {
    ...handle, ...unitsOf(handle, answer.total), look: lookOf(handle),
    text: textOf(handle, answer), valuePerUnit: valuePerUnit(handle, answer),
  };
}

function unitsOf({ axis, value }, totalSteps) {
  if (axis === "step") return { unit: roundPart(totalSteps, 100), smallUnit: roundPart(totalSteps, 1000) };
  if (axis === "level") return { unit: 0.01, smallUnit: 0.01 };
  const order = value ? 10 ** Math.floor(Math.log10(value)) : 1e-3;
  return { unit: order / 10, smallUnit: order / 100 };
}

// About total / parts: 1, 2 or 5 times a power of ten, such as 200 for 30 000 and 100.
function roundPart(total, parts) {
  const part = Math.max(1, Math.floor(total / parts));
  const power = 10 ** (String(part).length - 1);
  return [5, 2, 1].map((times) => times * power).find((size) => size <= part);
}

function lookOf(handle) {
  if (handle.axis === "learning_rate") return "tag";
  return isPlateau(handle) ? "bar" : "knob";
}

function textOf(handle, answer) {
  const { axis, value } = handle;
  if (axis === "learning_rate") return rounded(value);
  if (axis === "level") return `${rounded(value)} of the peak`;
  return isPlateau(handle) || isOfPlateau(handle) ? textOfPlateau(handle, answer) : `step ${formatStep(value)}`;
}

function textOfPlateau(handle, answer) {
  const path = isPlateau(handle) ? handle.path : handle.path.slice(0, -1);
  const [list, index] = path.slice(-2), curve = valueAt(answer, path.slice(0, -2));
  const { first, length } = plateauInSteps(curve, list, index);
  const steps = isPlateau(handle) ? `steps ${formatStep(first)} to ${formatStep(first + length)}` : `step ${formatStep(handle.value)}`;
  if (list === "absolute_plateaus") return steps;
  const [start, duration] = curve.plateaus[index];
  const isEnd = isOfPlateau(handle) && handle.path.at(-1) === 1;
  return `${rounded(isEnd ? start + duration : start)} %, ${steps}`;
}

const rounded = (number) => String(Number(number.toPrecision(6)));

// Inside a continuation or a batch plan, the picture shows a multiple of the level.
function valuePerUnit({ axis, level, path, value }, answer) {
  if (axis !== "level") return 1;
  if (level && value) return value / level;
  const scales = path.map((key, index) => (key === "other" ? valueAt(answer, path.slice(0, index)).scale : 1));
  return 1 / Math.max(1e-9, scales.reduce((product, scale) => product * scale, 1));
}
