// New curves, and edits of a curve: parts placed where its present steps leave room, and moved handles.

import { valueAt, withValue } from "./history.js";

// The curves of the buttons that add one: the name and the description, with the length and the
// warmup of the selected curve.
/** @type {Record<string, (steps: number, warmup: Warmup) => [name: string, curve: object]>} */
export const TEMPLATES = {
  cosine: (steps, warmup) => ["Cosine", { kind: "plateau", total_steps: steps, ...warmup }],
  linear: (steps, warmup) => {
    const curve = { kind: "plateau", total_steps: steps, ...warmup, decay_shape: "linear" };
    return ["Line to 0", curve];
  },
  stable: (steps, warmup) => {
    const decay = { plateaus: [[0, 80]], decay_shape: "1-sqrt" };
    return ["Stable + cooldown", { kind: "plateau", total_steps: steps, ...warmup, ...decay }];
  },
  stages: (steps, { warmup_steps: rise, init_lr_ratio = 0, warmup_shape = "linear" }) => {
    const stable = Math.round((steps - rise) * 0.7);
    const stages = [
      [rise, 1, warmup_shape],
      [stable, null, "linear"],
      [steps - rise - stable, 0, "1-sqrt"],
    ];
    const start = rise ? init_lr_ratio : 1;
    return ["Stages", { kind: "staged", start, stages: stages.filter(([length]) => length) }];
  },
};

// The name, with the next free number if it is taken: Cosine, Cosine (2), Cosine (3).
/** @param {string} name @param {string[]} taken */
export function distinctName(name, taken) {
  const stem = taken.includes(name) ? name.replace(/ \(\d+\)$/, "") : name;
  const numbered = taken.map((_, index) => `${stem} (${index + 2})`);
  return [name, ...numbered].find((candidate) => !taken.includes(candidate)) ?? name;
}

// The total steps of a curve whose fields may be invalid: a guess, to place what is added to it.
/** @param {Curve} curve @returns {number} */
export function stepsOf(curve) {
  switch (curve.kind) {
    case "staged": return sumOf(curve.stages.map(([steps]) => steps));
    case "cooldown": return sumOf([curve.at, curve.steps]);
    case "then": return stepsOf(curve.curve) + stepsOf(curve.other);
    case "part": return curve.stop - curve.start || 0;
    case "scaled": return stepsOf(curve.curve);
    default: return Number(curve.total_steps) || 0;
  }
}

/** @param {Typed[]} counts @returns {number} */
const sumOf = (counts) => counts.reduce((total, count) => total + (Number(count) || 0), 0);

// A curve with a cooldown in its last fifth, so that the run keeps its length.
export function cooldown(/** @type {Curve} */ curve) {
  const total = stepsOf(curve);
  const steps = Math.max(1, Math.round(total / 5));
  return { kind: "cooldown", curve, at: total - steps, steps, to: 0, shape: "1-sqrt" };
}

/** @param {Curve} curve */
export const continuation = (curve) => ({ kind: "then", curve, other: structuredClone(curve), scale: 0.5 });

// The stages with one more, and its index. It takes half of the steps of the longest stage, and
// keeps the higher of its levels.
/** @param {Curve} curve @returns {[stages: Stage[], index: number]} */
export function withNewStage(curve) {
  const { stages } = curve;
  const lengths = stages.map(([steps]) => Math.floor(Number(steps)) || 0);
  const index = lengths.indexOf(Math.max(...lengths));
  const half = Math.floor(lengths[index] / 2);
  const [, to, shape] = stages[index];
  /** @type {Stage} */ const shorter = half ? [lengths[index] - half, to, shape] : stages[index];
  /** @type {Stage} */ const added = [half || 1, null, "linear"];
  if (isRise(curve, index)) return [stages.toSpliced(index, 1, shorter, added), index + 1];
  return [stages.toSpliced(index, 1, added, shorter), index];
}

// True if a stage ends higher than it begins.
/** @param {Curve} curve @param {number} index */
function isRise({ start, stages }, index) {
  const earlierLevels = [start, ...stages.slice(0, index).map(([, to]) => to)];
  // A stage without a level keeps the one before.
  const before = earlierLevels.findLast((level) => level !== null);
  return Number(stages[index][1] ?? -1) > Number(before);
}

// The plateaus of a list with one more, between the last one and the end, in round numbers.
/** @param {Curve} curve @param {"plateaus" | "absolute_plateaus"} list */
export function withNewPlateau(curve, list) {
  const warmup = Number(curve.warmup_steps) || 0;
  const afterWarmup = Math.max(1, stepsOf(curve) - warmup);
  const end = lastPlateauEnd(curve, warmup, afterWarmup);
  const start = end + (1 - end) / 3;
  const length = (1 - end) / 4;
  if (list === "plateaus") {
    const percent = (/** @type {number} */ fraction) => Math.round(1000 * fraction) / 10;
    return [...curve.plateaus, [percent(start), percent(length)]];
  }
  const spacing = 10 ** Math.floor(Math.log10(Math.max(1, length * afterWarmup)));
  const rounded = (/** @type {number} */ steps) => Math.floor(steps / spacing) * spacing;
  const first = rounded(warmup + start * afterWarmup);
  return [...curve.absolute_plateaus, [first, Math.max(1, rounded(length * afterWarmup))]];
}

// Where the last plateau ends, as a fraction of the steps after the warmup; 0 without plateaus.
/** @param {Curve} curve @param {number} warmup @param {number} afterWarmup */
function lastPlateauEnd(curve, warmup, afterWarmup) {
  const sum = (/** @type {[Typed, Typed]} */ [start, length]) => Number(start) + Number(length);
  const ends = [
    ...curve.plateaus.map((plateau) => sum(plateau) / 100),
    ...curve.absolute_plateaus.map((plateau) => (sum(plateau) - warmup) / afterWarmup),
  ];
  return Math.min(1, Math.max(0, ...ends.filter(Number.isFinite)));
}

// The steps that a percentage is, rounded down; NaN if one of the two is not a number. The product
// misses a whole number by less than 10⁻⁶: 32.3 % of 1000 steps are 323, not 322.99999999999994.
/** @param {number} percentage @param {number} whole */
export const stepsOfPercentage = (percentage, whole) => Math.floor((whole * percentage) / 100 + 1e-6);

const isListOfPlateaus = (/** @type {Typed} */ name) => ["plateaus", "absolute_plateaus"].includes(name);
// True if a handle moves all of a plateau, rather than one field.
export const isPlateau = (/** @type {Handle} */ { path }) => isListOfPlateaus(path.at(-2));

// The entry after a handle was moved by a distance.
/** @param {Entry} entry @param {Handle} handle @param {number} distance */
export function movedEntry(entry, handle, distance) {
  const { path, value } = handle;
  if (isPlateau(handle)) return withMovedPlateau(entry, path, [distance, 0]);
  if (isListOfPlateaus(path.at(-3))) {
    // The pair is (start, length): the start moves at the cost of the length, so that the end stays.
    const isStart = path.at(-1) === 0;
    return withMovedPlateau(entry, path.slice(0, -1), isStart ? [distance, -distance] : [0, distance]);
  }
  const before = valueAt(entry, path) ?? value;  // a plateau has no level of its own
  const next = withValue(entry, path, addDecimals(before, distance));
  const isBorder = path.at(-3) === "stages" && path.at(-1) === 0;
  return isBorder ? withShorterNextStage(next, path, distance) : next;
}

// A border takes from the next stage what it gives to this one. Empty stages have nothing to give.
/** @param {Entry} entry @param {Path} path @param {number} distance */
function withShorterNextStage(entry, path, distance) {
  const list = path.slice(0, -2);
  /** @type {Stage[]} */ const stages = valueAt(entry, list);
  const next = stages.findIndex(([steps], index) => index > Number(path.at(-2)) && steps > 0);
  if (next < 0) return entry;
  return withValue(entry, [...list, next, 0], stages[next][0] - distance);
}

// Move a plateau, the pair (start, length) at a path, by a distance for each of the two. One in
// percent becomes one in steps.
/** @param {Entry} entry @param {Path} path @param {number[]} distances */
function withMovedPlateau(entry, path, distances) {
  /** @type {number[]} */ const plateau = valueAt(entry, path);
  const [list, index] = path.slice(-2);
  if (list === "absolute_plateaus") {
    return withValue(entry, path, plateau.map((steps, item) => steps + distances[item]));
  }
  const curvePath = path.slice(0, -2);
  /** @type {Curve} */ const curve = valueAt(entry, curvePath);
  const afterWarmup = curve.total_steps - curve.warmup_steps;
  const [start, length] = plateau.map((percentage, item) =>
    stepsOfPercentage(percentage, afterWarmup) + distances[item]);
  return withValue(entry, curvePath, {
    ...curve,
    plateaus: curve.plateaus.toSpliced(Number(index), 1),
    absolute_plateaus: [...curve.absolute_plateaus, [curve.warmup_steps + start, length]],
  });
}

// The sum to 12 digits, which removes binary rounding: 12.3 rather than 12.299999999999999.
/** @param {number} augend @param {number} addend */
export function addDecimals(augend, addend) {
  const sum = Number((augend + addend).toPrecision(12));
  return Math.abs(sum) < 1e-12 * Math.abs(augend) ? 0 : sum;
}
