// The curves that the buttons below the table add.

// For each button: the name and the description of its curve. `steps` and `warmup` are those of the selected entry.
export const TEMPLATES = {
  copy: ({ selected }) => [`${selected.name} (copy)`, structuredClone(selected.curve)],
  cosine: ({ steps, warmup }) => ["Cosine", { total_steps: steps, warmup_steps: warmup }],
  linear: ({ steps, warmup }) => ["Line to 0", { total_steps: steps, warmup_steps: warmup, decay_shape: "linear" }],
  stable: ({ steps, warmup }) => ["Stable + cooldown",
    { total_steps: steps, warmup_steps: warmup, plateaus: [[0, 80]], decay_shape: "linear" }],
  stages: ({ steps, warmup }) => ["Stages", { kind: "staged", start: warmup ? 0 : 1, stages: [
    [warmup, 1, "linear"], [Math.round((steps - warmup) * 0.7), null, "linear"],
    [steps - warmup - Math.round((steps - warmup) * 0.7), 0, "1-sqrt"]].filter(([steps]) => steps) }],
};
