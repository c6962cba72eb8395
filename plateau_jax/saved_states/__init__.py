"""Saved states: their formats, pickles and copies.

`formats` (kinds of states, their entries, and errors from malformed ones), `storable` (frozen
dataclasses in JSON, pickles and copies).

To add an entry to a state:

1. Add it to the `TypedDict` next to the `Format` of the state. Write it in `state_dict`, and list
   it in its docstring. In `load_state_dict`, check it before anything changes. A `TrainStep` does
   this in `torch_bridge/training/train_step/step_state.py`, where `PER_RANK_ENTRIES` lists what
   differs between ranks. For a `lambda_lr`, `read_scheduler_state` says what a state of torch has
   in its place. If the learning rate depends on the entry, add it to `_SAME_ON_ALL_RANKS` in
   `torch_bridge/training/checkpointing/parts.py`.
2. A state contains a number once: compute what other entries determine. The peaks of a scheduler
   are in `base_lrs`, as in torch, and not in its records.
3. Test a run that resumes from a state with the entry.

Do not add fields to the states of `scale_by_curve` or of hold rules: orbax, flax and pickles
restore a named tuple only into one with the same fields.
"""
