// New curves, and edits of a curve: new parts, placed where its present steps leave room, moved handles, and percentages of the run.

import { valueAt, withValue } from "./history.js";

// For each button: the name and the description of its curve, with the length and the warmup of the selected one.
export const TEMPLATES = {
  cosine: (steps, warmup) => ["Cosine", { total_steps: steps, ...warmup }],
  linear: (steps, warmup) => ["Line to 0", { total_steps: steps, ...warmup, decay_shape: "linear" }],
  stable: (steps, warmup) => ["Stable + cooldown", { total_steps: steps, ...warmup, plateaus: [[0, 80]], decay_shape: "1-sqrt" }],
  stages: (steps, { warmup_steps: rise, init_lr_ratio: start = 0, warmup_shape: shape = "linear" }) => {
    const hold = Math.round((steps - rise) * 0.7);
    const stages = [[rise, 1, shape], [hold, null, "linear"], [steps - rise - hold, 0, "1-sqrt"]];
    return ["Stages", { kind: "staged", start: rise ? start : 1, stages: stages.filter(([steps]) => steps) }];
  },
};

// The name, with the next free number if it is taken: Cosine, Cosine (2), Cosine (3).
export function distinctName(name, taken) {
  const stem = taken.includes(name) ? name.replace(/ \(\d+\)$/, "") : name;
  const names = [name, ...taken.map((_, index) => `${stem} (${index + 2})`)];
  return names.find((other) => !taken.includes(other));
}

// The total steps of a curve whose fields may be invalid: a guess, to place what is added to it.
export function stepsOf(curve) {
  const sum = (steps) => steps.reduce((total, step) => total + (Number(step) || 0), 0);
  const counts = { undefined: () => Number(curve.total_steps) || 0, staged: () => sum(curve.stages.map(([steps]) => steps)),
    cooldown: () => sum([curve.at, curve.steps]), then: () => stepsOf(curve.curve) + stepsOf(curve.other),
    part: () => curve.stop - curve.start || 0, scaled: () => stepsOf(curve.curve) };
  return counts[curve.kind]();
}

// A curve with a cooldown in its last fifth, so that the run keeps its length.
export function cooldown(curve) {
  const total = stepsOf(curve), steps = Math.max(1, Math.round(total / 5));
  return { kind: "cooldown", curve, at: total - steps, steps, to: 0, shape: "1-sqrt" };
}

export const continuation = (curve) => ({ kind: "then", curve, other: structuredClone(curve), scale: 0.5 });

// The stages with one more, and its index. It takes half of the steps of the longest stage, and holds the higher of its
// levels.
export function withNewStage(curve) {
  const { stages } = curve;
  const lengths = stages.map(([steps]) => Math.floor(Number(steps)) || 0);
  const index = lengths.indexOf(Math.max(...lengths));
  const half = Math.floor(lengths[index] / 2);
  const shorter = half ? [lengths[index] - half, ...stages[index].slice(1)] : stages[index];
  const added = [half || 1, null, "linear"];
  return isRise(curve, index) ? [stages.toSpliced(index, 1, shorter, added), index + 1] : [stages.toSpliced(index, 1, added, shorter), index];
}

// True if a stage ends higher than it begins.
export function isRise({ start, stages }, index) {
  const levels = [start, ...stages.slice(0, index).map(([, to]) => to)];
  return Number(stages[index][1] ?? -1) > Number(levels.findLast((level) => level !== null));
}

// The plateaus of a list with one more, between the last one and the end, in round numbers.
export function withNewPlateau(curve, list) {
  const warmup = Number(curve.warmup_steps) || 0, afterWarmup = Math.max(1, stepsOf(curve) - warmup);
  const ends = [...curve.plateaus.map(([start, length]) => (Number(start) + Number(length)) / 100),
    ...curve.absolute_plateaus.map(([start, length]) => (Number(start) + Number(length) - warmup) / afterWarmup)];
  const end = Math.min(1, Math.max(0, ...ends.filter(Number.isFinite)));
  const [start, length] = [end + (1 - end) / 3, (1 - end) / 4];
  if (list === "plateaus") return [...curve.plateaus, [start, length].map((part) => Math.round(1000 * part) / 10)];
  const unit = 10 ** Math.floor(Math.log10(Math.max(1, length * afterWarmup)));
  const [first, steps] = [warmup + start * afterWarmup, length * afterWarmup].map((part) => Math.floor(part / unit) * unit);
  return [...curve.absolute_plateaus, [first, Math.max(1, steps)]];
}

// The steps that a percentage is, rounded down; NaN if one of the two is not a number. The product misses a whole number
// by less than 10⁻⁶: 32.3 % of 1000 steps are 323, not 322.99999999999994.
export const stepsOfPercentage = (percentage, whole) => Math.floor((whole * percentage) / 100 + 1e-6);

// The percentage with at most one decimal that is exactly this many steps: 80 for 7600 of 9500, null for 7500.
export function roundPercentage(steps, whole) {
  const percentage = Math.ceil((1000 * steps) / whole) / 10;
  return stepsOfPercentage(percentage, whole) === steps ? percentage : null;
}

// The steps that a percentage of the run is, in the field at a path of an entry; NaN for a field that takes none.
export function stepsOfRun(percentage, entry, path) {
  const [list, index] = path.slice(-3);
  const curve = valueAt(entry, path.slice(0, ["stages", "absolute_plateaus"].includes(list) ? -3 : -1));
  const name = path.at(-1);
  const ofOthers = (others) => Math.round((others * percentage) / (100 - percentage));
  if (list === "stages") return name === 0 ? ofOthers(stepsOf({ ...curve, stages: curve.stages.toSpliced(index, 1) })) : NaN;
  if (list === "absolute_plateaus" || name === "warmup_steps") return stepsOfPercentage(percentage, stepsOf(curve));
  if (curve.kind === "cooldown" && name === "steps") return ofOthers(Number(curve.at));
  return ["at", "stop"].includes(name) || (curve.kind === "part" && name === "start") ? stepsOfPercentage(percentage, stepsOf(curve.curve)) : NaN;
}

// A handle of the server is {name, path, axis, step, level, value, low, high, slope}: a point on the picture, and the
// number that moves with it. The path is that of a field of the entry, or of a plateau for a handle that moves all of it.
const PLATEAUS = ["plateaus", "absolute_plateaus"];
export const isPlateau = ({ path }) => PLATEAUS.includes(path.at(-2));

// The entry after a handle was moved by a distance.
export function movedEntry(entry, handle, distance) {
  const { path, value } = handle;
  if (isPlateau(handle)) return withMovedPlateau(entry, path, distance, 0);
  // The pair is (start, length): the start moves at the cost of the length, so that the end stays.
  if (PLATEAUS.includes(path.at(-3))) return withMovedPlateau(entry, path.slice(0, -1), ...(path.at(-1) === 0 ? [distance, -distance] : [0, distance]));
  const before = valueAt(entry, path) ?? value;  // a stage that holds has no level of its own
  const next = withValue(entry, path, addDecimals(before, distance));
  return path.at(-3) === "stages" && path.at(-1) === 0 ? withShorterNextStage(next, path, distance) : next;
}

// A border takes from the next stage what it gives to this one. Empty stages have nothing to give.
function withShorterNextStage(entry, path, distance) {
  const stages = valueAt(entry, path.slice(0, -2));
  const next = stages.findIndex(([steps], index) => index > path.at(-2) && steps > 0);
  return next < 0 ? entry : withValue(entry, [...path.slice(0, -2), next, 0], stages[next][0] - distance);
}

// A plateau in percent becomes one in steps, unless round percentages say the same.
function withMovedPlateau(entry, path, startDistance, lengthDistance) {
  const [list, index] = path.slice(-2), curvePath = path.slice(0, -2), curve = valueAt(entry, curvePath);
  const before = curve[list][index], distances = [startDistance, lengthDistance];
  if (list === "absolute_plateaus") return withValue(entry, path, before.map((steps, item) => steps + distances[item]));
  const afterWarmup = curve.total_steps - curve.warmup_steps;
  const inSteps = before.map((percentage, item) => stepsOfPercentage(percentage, afterWarmup) + distances[item]);
  const inPercent = before.map((percentage, item) => (distances[item] ? roundPercentage(inSteps[item], afterWarmup) : percentage));
  if (!inPercent.includes(null)) return withValue(entry, path, inPercent);
  const [start, length] = inSteps;
  return withValue(entry, curvePath, {
    ...curve,
    plateaus: curve.plateaus.toSpliced(index, 1),
    absolute_plateaus: [...curve.absolute_plateaus, [curve.warmup_steps + start, length]],
  });
}

// The sum to 12 digits, which removes binary rounding: 12.3 rather than 12.299999999999999.
export function addDecimals(augend, addend) {
  const sum = Number((augend + addend).toPrecision(12));
  return Math.abs(sum) < 1e-12 * Math.abs(augend) ? 0 : sum;
}
