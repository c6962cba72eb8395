"""A whole training step on the device.

Four updates with a peak of 0.1 and a linear warmup of 10 steps. The third loss is infinite, so the
optimizer's step is skipped there, the curve stays at its step, and the host learns of it only from
the counters, when it reads them:

    result.loss           0.29    1.17    inf     0.99
    result.lr             0.00    0.01    0.02    0.02
    result.curve_step     0       1       2       2
    result.applied        1       2       2       3
    result.skipped        0       0       1       1

`step` (the class, with `result`); `update` (the order of an update); `loss`, `loss_call` and
`loss_normalizer` (what a loss function returns, how it is called, what divides it); `gradients`;
`precision`; `optimizer_checks`, `steppers` (steps of the optimizers), `fused_sgd` (workarounds for
two defects of torch); `cuda_graphs` (capture, replay, guards); `status` (what an interrupted update
or load makes the step reject); `step_state` and `optimizer_states`; `run_warnings`.

To add a precision, add its name to `PrecisionName`, and its `autocast` and its `scale` to
`Precision`; no other file makes a decision by the name of a precision. Reject it there on devices
that cannot run it. Add training runs to `tests/train_step/kinds_of_run.py`, which are then compared
with a hand-written loop.

To add an optimizer whose fused kernels can skip an update on the device, add it to `_SKIPPING` in
`steppers`. Try first what a skipped first update leaves behind: see `fused_sgd`. Add the class to
`FUSED` or `OTHERS` in `tests/support/training/optimizers.py`: every kind of training run then
covers it. Name it in `docs/training_step.md`.
"""
