"""Checkpoints of a training run. `torch.distributed.checkpoint` (DCP) plans and reads their files.

`file_format` (the files: no other one imports safetensors and DCP), `numpy_values` and
`stored_values` (what is not a plain tensor), `states` (a state as tensors and a structure), `parts`
(objects that have a state), `checkpoint_dirs` (manifests, commit, pruning), `saving` (in the
background), `loading` (digests, resharding), `merging` (means of several checkpoints),
`checkpoints` (the public class).
"""
