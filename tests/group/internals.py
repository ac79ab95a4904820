"""The internal parts of a `ConsumerGroup`, in one place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asyncgroup import ConsumerGroup
from asyncgroup.cluster import ClusterClient

__all__ = ["make_second_client", "membership_of"]


def membership_of(group: ConsumerGroup) -> Any:
    """Return the membership: of the classic protocol or of KIP-848."""
    return group._inner._membership


def make_second_client(group: ConsumerGroup) -> Callable[[], ClusterClient]:
    """Return what makes the client of the heartbeat thread."""
    return group._inner._member._second_client_maker()
