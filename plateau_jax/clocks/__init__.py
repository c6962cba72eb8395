"""Clocks, which move a run along its curve, and hold rules.

A run of five updates without a clock, with a `DataClock(100)`, and with a hold rule that holds the
curve at step 2 for two updates:

    update                              0    1    2    3    4
    step of the curve                   0    1    2    3    4
    samples before the update           0   80  160  240  320
    step, with the clock                0    0    1    2    3
    step, with the hold rule            0    1    2    2    2

A `Position` contains what such a line needs to go on, and is saved with the run: the updates, the
samples, the step, and what each hold rule remembers.

`hold_rule` (what a hold rule defines), `rules` (everything about each rule, and the list of them),
`decision` (of all rules of a run, for NumPy, JAX and torch), `clock` (the argument `clock`, checked
once for both packages), `position` (where a run is, and what moves it).

To add a hold rule:

1. In `rules`, write the class, a frozen dataclass `class Name(HoldRule, kind="name")`, and its
   state, a NamedTuple of int32 and float32 scalars. `_update` returns the next state, and True if
   the rule holds the curve. It may use only operators and `xp.where`, and keeps the dtype of a
   field: `xp.where(condition, 1, state.field)`. It reads one number per update, the metric that the
   program passes.
2. Add the class to `AnyHoldRule`.
3. In `tests/support/clocks/rules.py`, add a simulation, a strategy and samples. `Below` is the
   nearest model, and `UntilFlat` for a rule that holds only plateaus.
4. Add the name to the `__init__.py` and the `__init__.pyi` of both packages, to
   `docs/reference/index.md` and to `docs/clocks.md`.
"""
