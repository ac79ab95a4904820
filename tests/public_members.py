"""The public members of a class, for the tests that list them."""

from __future__ import annotations

import ast
import inspect
import textwrap

__all__ = ["attributes_of", "public_members"]


def attributes_of(kind: type) -> set[str]:
    """Return the names that the methods of a class assign to `self`."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


def public_members(kind: type) -> set[str]:
    """Return the public names of an instance: those of its class, its fields, and what its methods assign."""
    names = {name for name in dir(kind) if hasattr(kind, name)}  # without those that only raise a hint
    for each in kind.__mro__:
        names |= set(inspect.get_annotations(each))
        if each.__module__.startswith("asyncgroup."):
            names |= attributes_of(each)
    inherited = set(dir(tuple)) if issubclass(kind, tuple) else set()
    return {name for name in names - inherited if not name.startswith("_")}
