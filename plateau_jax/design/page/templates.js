// The curves that the buttons add.

// For each button: the name and the description of its curve, with the length and the warmup of the selected one.
export const TEMPLATES = {
  cosine: (steps, warmup) => ["Cosine", { total_steps: steps, ...warmup }],
  linear: (steps, warmup) => ["Line to 0", { total_steps: steps, ...warmup, decay_shape: "linear" }],
  stable: (steps, warmup) => ["Stable + cooldown", { total_steps: steps, ...warmup, plateaus: [[0, 80]], decay_shape: "1-sqrt" }],
  restarts: (steps, warmup) => {
    const half = Math.max(1, Math.floor(steps / 2));
    const first = { total_steps: Math.max(1, steps - half), ...(warmup.warmup_steps < steps - half ? warmup : {}) };
    return ["Restarts", { kind: "then", curve: first, other: { total_steps: half }, scale: 1 }];
  },
  stages: (steps, { warmup_steps: rise, init_lr_ratio: start = 0, warmup_shape: shape }) => {
    const hold = Math.round((steps - rise) * 0.7);
    const stages = [[rise, 1, shape], [hold, null, "linear"], [steps - rise - hold, 0, "1-sqrt"]];
    return ["Stages", { kind: "staged", start: rise ? start : 1, stages: stages.filter(([steps]) => steps) }];
  },
};

// The name, with the next free number if it is taken: Cosine, Cosine (2), Cosine (3).
export function distinctName(name, taken) {
  if (!taken.includes(name)) return name;
  const numbered = name.replace(/ \(\d+\)$/, "");
  const stem = taken.includes(numbered) ? numbered : name;
  for (let number = 2; ; number += 1) {
    if (!taken.includes(`${stem} (${number})`)) return `${stem} (${number})`;
  }
}
