"""The attributes of a frozen object, out of reach of torch's LambdaLR."""

from typing import Any


class Namespace(dict[str, Any]):
    """The `__dict__` of a curve.

    `LambdaLR(optimizer, curve)` saves the `__dict__` of what it calls by `copy`, and loads it by `update`:
    tables would go into checkpoints, and an old curve would be written over a frozen one.
    """

    def copy(self) -> dict[str, Any]:
        return {}

    def update(self, *_: Any, **__: Any) -> None:
        pass
