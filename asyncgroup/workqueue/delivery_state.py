"""DeliveryState: where a record is between its arrival and its acknowledgement, and the legal moves. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, EnumType
from typing import TYPE_CHECKING, Final, NoReturn

__all__ = ["MOVES", "DeliveryState"]


class _WithFormerNames(EnumType):
    """Names the new member in the error for a former one: Python 3.11 hides the text of a descriptor's AttributeError."""

    if not TYPE_CHECKING:  # a type checker would accept any name

        def __getattr__(cls, name: str) -> NoReturn:
            now = "; here it is: DeliveryState.ACQUIRED" if name == "IN_HAND" else ""
            text = f"type object {cls.__name__!r} has no attribute {name!r}{now}"
            raise AttributeError(text, name=name, obj=cls)


class DeliveryState(Enum, metaclass=_WithFormerNames):
    """The state of a record; from `ACQUIRED` on it is that of its delivery, which keeps the last one.

    Exactly one container of `PartitionWork` has a record, and says its state before and after a delivery.
    """

    QUEUED = "waits for its turn"
    BLOCKED = "waits for an earlier record of its key"
    WAITING = "waits for its time"
    ACQUIRED = "acquired"
    NACKED = "nacked"
    EXPIRED = "expired"
    HELD = "failed, and waits for the end of its handler"
    RELEASED = "given back"
    PUBLISHING = "being copied to its retry or dead letter topic"
    ACKED = "acknowledged"
    LOST = "lost"


_S: Final = DeliveryState

MOVES: Final[Mapping[DeliveryState, frozenset[DeliveryState]]] = {
    _S.QUEUED: frozenset({_S.ACQUIRED, _S.ACKED, _S.LOST}),
    _S.BLOCKED: frozenset({_S.QUEUED, _S.WAITING, _S.PUBLISHING, _S.LOST}),
    _S.WAITING: frozenset({_S.QUEUED, _S.BLOCKED, _S.PUBLISHING, _S.ACKED, _S.LOST}),
    _S.ACQUIRED: frozenset({_S.ACKED, _S.NACKED, _S.EXPIRED, _S.RELEASED, _S.PUBLISHING, _S.LOST}),
    _S.NACKED: frozenset({_S.HELD, _S.WAITING, _S.PUBLISHING, _S.LOST}),
    _S.EXPIRED: frozenset({_S.HELD, _S.WAITING, _S.QUEUED, _S.PUBLISHING, _S.LOST}),
    _S.HELD: frozenset({_S.WAITING, _S.PUBLISHING, _S.LOST}),
    _S.RELEASED: frozenset({_S.QUEUED, _S.LOST}),
    _S.PUBLISHING: frozenset({_S.ACKED, _S.WAITING, _S.LOST}),
    _S.ACKED: frozenset(),
    _S.LOST: frozenset(),
}
"""The states that may follow each state.

- A record arrives in `QUEUED`, `BLOCKED`, `WAITING` or `PUBLISHING` (a dead letter), or is `ACKED` already.
- `QUEUED` and `WAITING` to `ACKED`: a cumulative acknowledgement, before the record was delivered again.
- `PUBLISHING` to `WAITING`: its copy was given up; the delivery is `LOST`. If no delivery is left it may be copied again.
- Where a broker gives a record again, it is forgotten here as if it were `ACKED`, and arrives as another one.
- After `LOST` the next owner of its partition reads the record.
"""
