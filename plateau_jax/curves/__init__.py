"""The kinds of curves.

`serialization` (JSON; a kind registers with its class, `class Cooldown(Curve, kind="cooldown")`),
`lengths` (percentages and `"rest"`), `curve` (the base class), `several_curves` (for `vmap`),
`plateau_curve`, `staged_curve`, `derived_curves` (cooldowns, continuations and parts),
`scaled_curve` (what `BatchPlan.scale` returns).

To add a kind of curve:

1. Write a frozen dataclass, `class Name(Curve, kind="name")`, as in `derived_curves`. Its fields
   are the arguments that users write; one that is a curve is named `curve` or `other`.
   `__post_init__` checks them, and calls `_set_segments` with the exact segments, from which
   everything else follows. Import the module in `plateau_jax/__init__.py`. A kind that is derived
   from other curves gets a method of `Curve`, as `cooldown` has.
2. For the design page, extend `handles.py`, `page/controls.js`, and `stepsOf` in `page/edits.js`,
   all in `plateau_jax/tools/design/`.
3. In `tests/`, draw descriptions in `support/curves/descriptions.py`, write the exact levels in
   `support/numerics/oracle.py`, and the defaults in `curves/test_values.py`. Add two curves that
   differ in every argument to `support/golden/curves.py`, and run `python -m golden.write`.
   A kind that is not derived from other curves also needs a case in `curves/test_same_until.py`.
4. Document it in `Curve.from_dict` and in `docs/configuration.md`. If users call it by name, the
   name also goes where CONTRIBUTING says for public names, and into `docs/curves.md`.
"""
