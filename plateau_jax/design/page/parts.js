// New parts of a curve, placed where its present steps leave room, and the numbers of its plateaus.

import { valueAt } from "./history.js";
import { stepsOfPercentage } from "./percentages.js";

// The total steps of a curve whose fields may be invalid: a guess, to place what is added to it.
export function stepsOf(curve) {
  const sum = (steps) => steps.reduce((total, step) => total + (Number(step) || 0), 0);
  const counts = { undefined: () => Number(curve.total_steps) || 0, staged: () => sum(curve.stages.map(([steps]) => steps)),
    cooldown: () => sum([curve.at, curve.steps]), then: () => stepsOf(curve.curve) + stepsOf(curve.other),
    part: () => curve.stop - curve.start || 0, scaled: () => stepsOf(curve.curve) };
  return counts[curve?.kind]?.() ?? 0;
}

// A fifth of the run, so that the run keeps its length.
const cooldownSteps = (curve) => Math.max(1, Math.round(stepsOf(curve) / 5));

export const cooldown = (curve) => ({ kind: "cooldown", curve, at: stepsOf(curve) - cooldownSteps(curve),
  steps: cooldownSteps(curve), to: 0, shape: "1-sqrt" });

export const continuation = (curve) => ({ kind: "then", curve, other: structuredClone(curve), scale: 0.5 });

// The stages with one more, and its index. It takes half of the steps of the longest stage, and holds the higher of its
// levels.
export function withNewStage(curve) {
  const { stages } = curve;
  const lengths = stages.map(([steps]) => (Number.isSafeInteger(steps) ? steps : 0));
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

// The steps that a percentage of the run is, in the field at a path of an entry; NaN for a field that takes none.
export function stepsOfRun(percentage, entry, path) {
  const [list, index] = path.slice(-3);
  const curve = valueAt(entry, path.slice(0, path.includes("stages") || path.includes("absolute_plateaus") ? -3 : -1));
  if (list === "absolute_plateaus") return stepsOfPercentage(percentage, Number(curve.total_steps));
  const name = path.at(-1);
  const withOthers = (others) => Math.round((others * percentage) / (100 - percentage));
  if (list === "stages") return name === 0 ? withOthers(stepsOf({ ...curve, stages: curve.stages.toSpliced(index, 1) })) : NaN;
  if (name === "warmup_steps") return stepsOfPercentage(percentage, Number(curve.total_steps));
  if (curve.kind === "cooldown" && name === "steps") return withOthers(Number(curve.at));
  const isOfParent = (curve.kind === "cooldown" && name === "at") || (curve.kind === "part" && ["start", "stop"].includes(name));
  return isOfParent ? stepsOfPercentage(percentage, stepsOf(curve.curve)) : NaN;
}

export const newPlateau = (curve) => middleOfWidestGap(curve, 20).map((percent) => Math.round(percent * 10) / 10);

export function newAbsolutePlateau(curve) {
  const [start, length] = middleOfWidestGap(curve, 5).map((percent) => Math.round((percent * stepsAfterWarmup(curve)) / 100));
  // Round numbers, such as 5 000 and 400 instead of 5 013 and 475; a gap leaves half of the length on both sides.
  const unit = 10 ** Math.floor(Math.log10(Math.max(1, length)));
  const round = (steps) => Math.round(steps / unit) * unit;
  return [round((Number(curve.warmup_steps) || 0) + start), Math.max(1, Math.floor(length / unit) * unit)];
}

const stepsAfterWarmup = (curve) => Math.max(1, stepsOf(curve) - (Number(curve.warmup_steps) || 0));

// The start and the length of a plateau in the middle of the widest gap between the others, in percent of the steps
// after the warmup.
function middleOfWidestGap(curve, maxLength) {
  const { plateaus = [], absolute_plateaus = [], warmup_steps } = curve;
  const isNumeric = (pair) => pair?.every(Number.isFinite);
  const inPercent = absolute_plateaus.filter(isNumeric).map(([start, length]) =>
    [start - warmup_steps, length].map((steps) => (steps * 100) / stepsAfterWarmup(curve)));
  const taken = [[0, 0], ...plateaus.filter(isNumeric), ...inPercent, [100, 0]].sort(([start], [otherStart]) => start - otherStart);
  const gaps = taken.slice(1).map(([start], index) => [taken[index][0] + taken[index][1], start]);
  const [from, to] = gaps.reduce((widest, gap) => (gap[1] - gap[0] >= widest[1] - widest[0] ? gap : widest));
  const length = Math.min(maxLength, (to - from) / 2);
  return [from + (to - from - length) / 2, length];
}

// A plateau in steps, from the list and the index of its pair; NaN if the pair or the warmup is invalid.
export function plateauInSteps(curve, list, index) {
  const [start, length] = curve[list][index];
  if (list === "absolute_plateaus") return { first: start, length };
  const inSteps = (percent) => stepsOfPercentage(percent, curve.total_steps - curve.warmup_steps);
  return { first: curve.warmup_steps + inSteps(start), length: inSteps(length) };
}

// The number of each plateau, by list and index: from left to right, as the handles are numbered. A plateau without
// a valid place comes last.
export function plateauNumbers(curve) {
  const finite = (step) => (Number.isFinite(step) ? step : Infinity);
  const placed = ["absolute_plateaus", "plateaus"].flatMap((list) =>
    (curve[list] ?? []).map((_, index) => ({ list, index, ...plateauInSteps(curve, list, index) })));
  placed.sort((one, other) => finite(one.first) - finite(other.first) || finite(one.length) - finite(other.length) || 0);
  const numbers = { plateaus: [], absolute_plateaus: [] };
  placed.forEach(({ list, index }, place) => (numbers[list][index] = place + 1));
  return numbers;
}
