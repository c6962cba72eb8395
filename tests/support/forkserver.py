"""The one server that processes of tests are forked off, with what they import imported already.

There is one for each process that runs tests, so all of them need one list.
"""

import multiprocessing

FORKSERVER = multiprocessing.get_context("forkserver")
FORKSERVER.set_forkserver_preload(
    [
        *("pytest", "matplotlib.pyplot", "statsmodels.datasets", "sklearn.datasets"),
        *("flax.nnx", "orbax.checkpoint", "torch_bridge", "torchdata.stateful_dataloader"),
        *("torch.distributed.fsdp", "torch.distributed.checkpoint"),
        "torch._dynamo",  # which torch imports with the first optimizer
    ]
)
