"""Checkpoints of a whole run, written and read by `torch.distributed.checkpoint` (DCP).

In the order of the data: `states` (a state as tensors and a structure), `parts` (objects that have a state),
`checkpoint_dirs` (where a checkpoint lies), `saving`, `loading`, `merging`, `checkpoints` (the public class).
"""
