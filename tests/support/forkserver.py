"""The server from which tests fork processes, with the slow imports already done.

Python has one such server per process, so all tests share one list of imports.
"""

import multiprocessing

FORKSERVER = multiprocessing.get_context("forkserver")
FORKSERVER.set_forkserver_preload(
    [
        *("pytest", "matplotlib.pyplot", "statsmodels.datasets", "sklearn.datasets"),
        *("flax.nnx", "orbax.checkpoint", "torch_bridge"),
        *("torch.distributed.fsdp", "torch.distributed.checkpoint"),
        "torch._dynamo",  # torch imports it with the first optimizer
    ]
)
