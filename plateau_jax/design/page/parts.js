// New parts of a curve, placed where its present steps leave room, and the numbers of its plateaus.

// The total steps of a curve whose fields may be invalid: a guess, to place what is added to it.
export function stepsOf(curve) {
  const sum = (steps) => steps.reduce((total, step) => total + (Number(step) || 0), 0);
  const counts = { undefined: () => Number(curve.total_steps) || 0, staged: () => sum(curve.stages.map(([steps]) => steps)),
    cooldown: () => sum([curve.at, curve.steps]), then: () => stepsOf(curve.curve) + stepsOf(curve.other) };
  return counts[curve?.kind]?.() ?? 0;
}

export const cooldown = (curve) => ({ kind: "cooldown", curve, at: Math.round(stepsOf(curve) * 0.6),
  steps: Math.max(1, Math.round(stepsOf(curve) * 0.2)), to: 0, shape: "1-sqrt" });

export const continuation = (curve) => ({ kind: "then", curve, other: structuredClone(curve), scale: 0.5 });

// A plateau in the middle of the widest gap between those in percent.
export function newPlateau({ plateaus = [] }) {
  const taken = [[0, 0], ...plateaus.filter((pair) => pair?.every(Number.isFinite)), [100, 0]].sort(([start], [otherStart]) => start - otherStart);
  const gaps = taken.slice(1).map(([start], index) => [taken[index][0] + taken[index][1], start]);
  const [from, to] = gaps.reduce((widest, gap) => (gap[1] - gap[0] > widest[1] - widest[0] ? gap : widest));
  const length = Math.min(20, (to - from) / 2);
  return [Math.round((from + (to - from - length) / 2) * 10) / 10, Math.round(length * 10) / 10];
}

export const newAbsolutePlateau = (curve) => [Math.round(stepsOf(curve) * 0.85), Math.max(1, Math.round(stepsOf(curve) * 0.05))];

// The number of each plateau, by list and index: from left to right, as the handles are numbered. A plateau without
// a valid place comes last.
export function plateauNumbers(curve) {
  const steps = curve.total_steps - curve.warmup_steps;
  const finite = (step) => (Number.isFinite(step) ? step : Infinity);
  const inSteps = (percent) => Math.floor((steps * percent) / 100 + 1e-9);
  const placed = [
    ...(curve.absolute_plateaus ?? []).map(([start, length], index) => ({ list: "absolute_plateaus", index, first: start, length })),
    ...(curve.plateaus ?? []).map(([start, length], index) => ({ list: "plateaus", index, first: curve.warmup_steps + inSteps(start), length: inSteps(length) })),
  ];
  placed.sort((one, other) => finite(one.first) - finite(other.first) || finite(one.length) - finite(other.length) || 0);
  const numbers = { plateaus: [], absolute_plateaus: [] };
  placed.forEach(({ list, index }, place) => (numbers[list][index] = place + 1));
  return numbers;
}
