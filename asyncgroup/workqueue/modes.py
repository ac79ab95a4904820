"""Mode: how the records of a work queue are distributed among its consumers, as Pulsar's subscription types."""

from __future__ import annotations

from enum import Enum
from typing import Any

from asyncgroup.errors import ConfigError

__all__ = ["Mode", "as_mode"]


class Mode(Enum):
    """Pulsar's subscription types (`SubscriptionType`), on the partitions that the group assigns to this member."""

    EXCLUSIVE = "exclusive"
    """One consumer for all partitions, in offset order; a second one raises ConsumerBusy."""
    FAILOVER = "failover"
    """One active consumer for each partition, in offset order; the others take over when it leaves."""
    SHARED = "shared"
    """Records of a partition are handled concurrently, in no order."""
    KEY_SHARED = "key_shared"
    """Records of a partition are handled concurrently, those with the same ordering key one after another."""

    @property
    def in_order(self) -> bool:
        """Whether the records of a partition are delivered in offset order, and a nack repeats all that follow."""
        return self in (Mode.EXCLUSIVE, Mode.FAILOVER)


def as_mode(key: str, value: Any) -> Mode:
    """Return a mode, or the one with this name, in any case: `key_shared`, `Key_Shared`. Raises ConfigError."""
    if isinstance(value, Mode):
        return value
    if isinstance(value, str):
        for mode in Mode:
            if value.lower() in (mode.value, mode.value.replace("_", "-")):
                return mode
    names = ", ".join(repr(mode.value) for mode in Mode)
    raise ConfigError(
        key, value, f"Mode.SHARED, Mode.KEY_SHARED, Mode.FAILOVER or Mode.EXCLUSIVE, or its name: {names}"
    )
