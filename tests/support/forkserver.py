"""The server that tests fork their processes off; it has imported what these need.

Python has one such server per process, so all tests share one list of imports.
"""

import multiprocessing

FORKSERVER = multiprocessing.get_context("forkserver")
FORKSERVER.set_forkserver_preload(
    [
        *("pytest", "matplotlib.pyplot", "statsmodels.datasets", "sklearn.datasets"),
        *("flax.nnx", "orbax.checkpoint", "torch_bridge"),
        *("torch.distributed.fsdp", "torch.distributed.checkpoint"),
        "torch._dynamo",  # which torch imports with the first optimizer
    ]
)
