"""What the coordinator of consumer groups and that of classic ones do for each other when a live group changes its protocol.

Each direction is a value that one side makes and the other acts on; `undo` is called if the records cannot be written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from asyncgroup.broker.groups.consumer.consumer_group_records import ConsumerGroupRecord
from asyncgroup.broker.groups.consumer.modern_group import ModernGroup
from asyncgroup.broker.groups.shared.interfaces import WriteCallback

__all__ = ["Downgrade", "ToClassic", "Upgrade", "WriteRecords"]

WriteRecords: TypeAlias = Callable[[str, Sequence[ConsumerGroupRecord], WriteCallback], None]
"""Writes records of a group, one batch; the callback is called when they are replicated or have failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upgrade:
    """A classic group whose place a consumer group takes."""

    group: ModernGroup
    """What it is as a consumer group, before the member joins that asks for it."""
    begin: Callable[[], None]
    """Removes the classic group."""
    undo: Callable[[], None]
    """Puts the classic group back."""
    write: WriteRecords
    """Writes the tombstone of the classic group in the same batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Downgrade:
    """A consumer group whose place a classic group takes."""

    group: ModernGroup
    """Its last value; all members, if there are any, use the classic protocol."""
    tombstones: Sequence[ConsumerGroupRecord]
    undo: Callable[[], None]
    """Puts the consumer group back."""
    reason: str | None = None
    """Why the classic group rebalances at once; None: it need not."""
    done: WriteCallback | None = None


ToClassic: TypeAlias = Callable[[Downgrade], None]
"""Adds the classic group and writes its records."""
