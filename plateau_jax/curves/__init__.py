"""The kinds of curves.

`serialization` (JSON; a kind registers with its class, `class Cooldown(Curve, kind="cooldown")`),
`lengths` (percentages and `"rest"`), `averaging_weights`, `curve` (the base class),
`several_curves` (lists and stacks), `plateau_curve`, `staged_curve`, `derived_curves` (cooldowns,
continuations and parts), `batch_plan` (schedules of batch sizes), with `scaled_curve` (what
`BatchPlan.scale` returns), and `plots`.
"""
