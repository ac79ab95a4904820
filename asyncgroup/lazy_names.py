"""Public names of a package that are imported from their modules on first use (PEP 562)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Collection, Mapping

__all__ = ["lazy_names"]


def lazy_names(
    package: str,
    names: Mapping[str, Collection[str]],
    modules: Collection[str] = (),
    former: Mapping[str, str] | None = None,
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return a `__getattr__` and a `__dir__` for `package`; `names` are those of each submodule.

    A submodule of the package above begins with a dot. `modules` are submodules that are attributes of the package without a separate import.
    `former` are names that were replaced: they raise an ImportError that names the new one.
    """
    module = sys.modules[package]
    homes = {name: home for home, its_names in names.items() for name in its_names}

    def module_getattr(name: str) -> object:
        value: object
        if name in homes:
            value = getattr(importlib.import_module(f".{homes[name]}", package), name)
        elif name in modules:
            value = importlib.import_module(f"{package}.{name}")
        elif former and name in former:
            # not an AttributeError, whose text `from … import …` would replace
            raise ImportError(f"{package}.{name} is {former[name]} now", name=package)
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(module, name, value)
        return value

    def module_dir() -> list[str]:
        return sorted({*vars(module), *module.__all__, *modules})

    return module_getattr, module_dir
