"""The kinds of curves.

`serialization` (JSON; a kind registers with its class, `class Cooldown(Curve, kind="cooldown")`),
`lengths` (percentages and `"rest"`), `curve` (the base class), `several_curves` (for `vmap`),
`plateau_curve`, `staged_curve`, `derived_curves` (cooldowns, continuations and parts),
`scaled_curve` (what `BatchPlan.scale` returns).

To add a kind of curve:

1. Write a frozen dataclass, `class Name(Curve, kind="name")`; `derived_curves` has short ones. Its
   fields are the arguments that users write. `__post_init__` checks them, and calls
   `_set_segments` with the exact segments, from which everything else follows. Import the module in
   `plateau_jax/__init__.py`, so that `Curve.from_dict` knows the kind. For the design page, add the
   kind to `code_snippets.py`, `handles.py`, `page/controls.js` and, in `page/edits.js`, to
   `stepsOf`, all in `plateau_jax/tools/design/`; for legends, to `_phrases` in
   `plateau_jax/tools/drawing/legend.py`. Add it to the kinds in the docstring of `Curve.from_dict`
   and in `docs/configuration.md`. Name an argument that is a curve `curve` or `other`
   (`serialization.NESTED`).
2. In `tests/`, build and draw it in `support/curves/descriptions.py`, and write its exact levels in
   `support/numerics/oracle.py`. Add two curves that differ in every argument to
   `support/golden/curves.py`, and run `python -m support.golden.write`. A kind that is not derived
   from other curves also needs a case in `curves/test_same_until.py`.
3. If users call it by name, add the name to the `__init__.py` and the `__init__.pyi` of
   `plateau_jax`, to `docs/reference/` and to `docs/curves.md`.
"""
