"""Deterministic hashes for anyio's cancel scopes, so that runs are reproducible.

anyio keeps cancel scopes in sets, whose order depends on memory addresses. Here they hash by the order of their creation,
as `VirtualTimeLoop` does it for tasks and futures. Otherwise the order in which tasks of a group are canceled would differ
between processes, and a seed would not always give the same run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

from anyio._backends._asyncio import CancelScope

__all__ = ["deterministic_scope_hashes"]


@contextmanager
def deterministic_scope_hashes() -> Iterator[None]:
    """Number the cancel scopes that are created during the block, from 1 on."""
    numbers = count(1)
    orders: dict[
        int, int
    ] = {}  # by address, as scopes have slots; a new one at an old address gets a new number
    original_new, original_hash = CancelScope.__new__, CancelScope.__hash__

    def new(cls: type[CancelScope], *args: Any, **options: Any) -> CancelScope:
        scope = original_new(cls, *args, **options)
        orders[id(scope)] = next(numbers)
        return scope

    def ordered(scope: CancelScope) -> int:
        return orders.get(id(scope), 0)

    CancelScope.__new__ = new  # type: ignore[assignment,method-assign]
    CancelScope.__hash__ = ordered  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        CancelScope.__new__ = original_new  # type: ignore[method-assign]
        CancelScope.__hash__ = original_hash  # type: ignore[method-assign]
