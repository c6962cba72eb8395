"""Options of parameter groups, such as a beta, which is one item of a pair."""

from typing import Any

Key = str | tuple[str, int]


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
