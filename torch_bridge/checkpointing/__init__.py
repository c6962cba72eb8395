"""Checkpoints of a whole run. `torch.distributed.checkpoint` (DCP) plans their files and reads them.

In the order of the data: `states` (a state as tensors and a structure), `parts` (objects that have
a state), `checkpoint_dirs` (where a checkpoint lies), `saving`, `loading`, `merging`, `checkpoints`
(the public class).
"""
