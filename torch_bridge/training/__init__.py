"""A whole training step on the device.

`step` (the class, with `result`); `update` (the order of an update); `loss`, `loss_call` and
`loss_normalizer` (what a loss function returns, how it is called, what divides it); `gradients`;
`precision`; `optimizers` (checks), `steppers` (steps of the optimizers), `fused_sgd` (workarounds
for two defects of torch); `cuda_graphs` (capture, replay, guards); `status` (what an interrupted
update or load makes the step reject); `step_state` and `optimizer_states`.
"""
