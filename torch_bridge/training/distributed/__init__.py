"""Training over several processes.

`processes` (ranks, and collectives of Python objects), `dtensors`, `subclasses` (tensors that wrap
other tensors), `parallelism` (what an update does alone, under DDP or FSDP2), `distribute`
(wraps in DDP or FSDP2, and says which parallelism a model has), `plain_names` (names without those
of wrappers).
"""
