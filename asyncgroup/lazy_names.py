"""Public names of a package that are imported from their modules on first use (PEP 562)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Collection, Mapping

__all__ = ["lazy_names"]


def lazy_names(
    package: str, homes: Mapping[str, str], modules: Collection[str] = ()
) -> Callable[[str], object]:
    """Return a `__getattr__` for `package`; `homes` maps each name to the submodule that defines it.

    `modules` are submodules that are attributes of the package without a separate import.
    """

    def module_getattr(name: str) -> object:
        value: object
        if name in homes:
            value = getattr(importlib.import_module(f"{package}.{homes[name]}"), name)
        elif name in modules:
            value = importlib.import_module(f"{package}.{name}")
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(sys.modules[package], name, value)
        return value

    return module_getattr
