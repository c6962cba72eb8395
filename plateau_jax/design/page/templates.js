// The curves that the buttons add, and distinct names.

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
