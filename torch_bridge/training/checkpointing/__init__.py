"""Checkpoints of a training run. `torch.distributed.checkpoint` (DCP) reads their files.

`file_format` (the files), `stored_values` (what a tensor or a NumPy value is in a file), `states`
(a state as tensors and a structure), `parts` (objects that have a state), `checkpoint_dirs`
(manifests, commit, pruning), `saving` (in the background), `loading` (digests, resharding),
`checkpoints` (the public class).
"""
