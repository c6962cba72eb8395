"""Options of parameter groups, such as a beta, which is one item of a pair."""

from typing import Any

from torch.optim import SGD, AdamW, RMSprop

Key = str | tuple[str, int]
FOLLOWED: list[tuple[Any, Key]] = [
    (SGD, "weight_decay"),
    (SGD, "momentum"),
    (RMSprop, "alpha"),
    (AdamW, "weight_decay"),
    (AdamW, ("betas", 0)),
    (AdamW, ("betas", 1)),
]
"""Optimizers, and options of theirs that a follower may set."""


def option_of(group: dict[str, Any], key: Key) -> Any:
    if isinstance(key, str):
        return group[key]
    name, index = key
    return group[name][index]


def set_option(group: dict[str, Any], key: Key, value: Any) -> None:
    if isinstance(key, str):
        group[key] = value
    else:
        name, index = key
        items = list(group[name])
        items[index] = value
        group[name] = tuple(items)
