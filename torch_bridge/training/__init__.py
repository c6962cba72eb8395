"""A whole training loop in PyTorch: the step, checkpoints, data, several ranks, evaluation.

These folders import the curve, which never imports them, and none of the tools.
`random_states` has the random numbers of a process and a device.
"""
