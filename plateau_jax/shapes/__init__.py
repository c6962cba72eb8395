"""The shapes of segments.

`series` has the equation of every shape, as a series around the middle of a piece. `known_shapes`
has the list of shapes, and how users write them.

To add a shape:

1. Write its function in `series`, in at most a dozen lines; `cosine` and `exponential` are the
   nearest models. A level is a constant plus one series: a sum of two, such as a squared cosine,
   also needs a change of `Expansion` and of `fitting.approximate`. Add a `Shape` with its name and
   its equation to the list in `known_shapes`. Its place in the list decides its place in messages.
   If it has a P, write the P with which the design page begins in `INITIAL_POWERS` of
   `plateau_jax/tools/design/answers.py`.
2. In `tests/support/numerics/shapes.py`, write its formula, which shares no code with the product.
   In `tests/`, run `python -m golden.write`.
3. Document the equation in the docstring of `StagedCurve`, in that of `PlateauCurve` if the shape
   may end at 0, and in `docs/curves.md`, whose picture `docs/pictures/draw_curves.py` draws. If it
   may not, name it in the errors of `StagedCurve`, `StagedCurve.wsd` and `Curve.cooldown`.

Nothing else knows shapes, except that `fitting` gives lines pieces of degree 1, and sums the three
series of an `Expansion`. The warmup of a `PlateauCurve` has a separate list, `WarmupShape`.
"""
