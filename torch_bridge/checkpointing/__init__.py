"""Checkpoints of a training run. `torch.distributed.checkpoint` (DCP) plans and reads their files.

In the order of the data: `file_format` (the files, and what they can hold), `states` (a state as
tensors and a structure), `parts` (objects that have a state), `checkpoint_dirs` (where a checkpoint
lies), `saving`, `loading`, `merging`, `checkpoints` (the public class).
"""
