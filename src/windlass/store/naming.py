"""Import paths: how user code is named where code itself may not travel. "package.module:Name", either way."""

from __future__ import annotations

import importlib
import inspect
import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np

from windlass.errors import UsageError


@dataclass(frozen=True)
class Configured:
    """What is known on the wire by the path of its class and by its fields."""

    def config(self) -> dict[str, Any]:
        """The plain values that `from_config` makes an equal one of."""
        cls, where = type(self), type(self).__name__
        if "__dataclass_fields__" not in vars(cls) and ("__init__" in vars(cls) or inspect.get_annotations(cls)):
            raise UsageError(f"{where} must be decorated with @dataclass(frozen=True): its fields are what travels")
        return {each.name: plain(getattr(self, each.name), f"{where}({each.name}=...)") for each in fields(self)}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        try:
            return cls(**config)
        except TypeError as error:
            allowed = ", ".join(each.name for each in fields(cls)) or "nothing"
            raise UsageError(f"{cls.__name__} takes {allowed}; got {dict(config)}") from error


def find(path: str, local: Mapping[str, object], expected: str) -> object:
    """What `path` names: an entry of `local`, else imported. UsageError says what was expected and what went wrong."""
    if path in local:
        return local[path]
    module_name, colon, attributes = path.partition(":")
    if not colon or not module_name or not attributes:
        raise UsageError(f"expected {expected}, got '{path}'")
    if module_name == "local":
        raise UsageError(f"'{path}' was declared by an embedded store and is known only there")
    try:
        found: object = importlib.import_module(module_name)
    except ImportError as error:
        text = f"cannot import '{module_name}' of '{path}': {error}; is it installed on every node?"
        raise UsageError(text) from error
    for attribute in attributes.split("."):
        try:
            found = getattr(found, attribute)
        except AttributeError as error:
            raise UsageError(f"'{path}' does not exist: {error}") from error
    return found


def path_of_class(cls: type) -> str | None:
    """The import path of a class, or None if it cannot be imported by one (made in a function, or in __main__)."""
    module = sys.modules.get(cls.__module__)
    if cls.__module__ == "__main__" or module is None:
        return None
    found: object = module
    for attribute in cls.__qualname__.split("."):
        found = getattr(found, attribute, None)
    return f"{cls.__module__}:{cls.__qualname__}" if found is cls else None


def path_of_global(value: object) -> str | None:
    """The import path of an object that some imported module holds at its top level, or None. Of several the shortest,
    then the first by name, so that every process gives it the same name."""
    paths = [
        f"{module.__name__}:{name}"
        for module in list(sys.modules.values())
        if isinstance(module, types.ModuleType) and module.__name__ != "__main__"
        for name, each in list(vars(module).items())
        if each is value
    ]
    return min(paths, key=lambda path: (len(path), path), default=None)


def enter_local(value: object, name: str, local: dict[str, object] | None, what: str) -> str:
    """Enter a nameless object in `local` under a fresh name, or under the one it has there already."""
    if local is None:
        raise UsageError(
            f"{what} has no import path: in a cluster it is named by one, since code does not travel. "
            "Define it at the top level of a module that every node can import (not __main__)"
        )
    path, number = f"local:{name}", 1
    while local.get(path, value) is not value:
        number += 1
        path = f"local:{name}-{number}"
    local[path] = value
    return path


def plain(value: object, where: str) -> object:
    """`value` as it looks after a trip over the wire: None, bool, int, float, str, and lists and dicts of them."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return plain(value.item(), where)
    if isinstance(value, list | tuple):
        return [plain(each, where) for each in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: plain(each, where) for key, each in value.items()}
    raise UsageError(f"{where} must be a plain value (number, string, list or dict of them), got {describe(value)}")


def describe(value: object) -> str:
    return f"the class {value.__qualname__}" if isinstance(value, type) else f"{type(value).__name__} {value!r:.80}"
