"""The attributes of a frozen object, out of reach of torch's LambdaLR."""

from typing import Any


class Namespace(dict[str, Any]):
    """The `__dict__` of a curve.

    torch's `LambdaLR(optimizer, curve)` saves `curve.__dict__.copy()`, and loads what it saved by
    `curve.__dict__.update`. So tables would go into checkpoints, and a saved curve would be written over a
    frozen one. Here `copy` returns nothing and `update` changes nothing.
    """

    def copy(self) -> dict[str, Any]:
        return {}

    def update(self, *_: Any, **__: Any) -> None:
        pass
