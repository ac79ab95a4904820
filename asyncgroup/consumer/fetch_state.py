"""FetchState: what a fetched partition waits for."""

from __future__ import annotations

from enum import Enum
from typing import Final

__all__ = ["NO_NODE", "FetchState"]

NO_NODE: Final = -1
"""`TopicPartitionState.node_id` while the partition is fetched from no broker."""


class FetchState(Enum):
    """What a partition waits for (`SubscriptionState.FetchState` in Java). Pauses and stalls are flags beside it."""

    INITIALIZING = "not given to a scheduler yet"
    AWAIT_RESET = "its offset is looked up: out of range, or a seek by name or time"
    AWAIT_VALIDATION = "its leader has to validate the position before more is fetched (KIP-320)"
    FETCHING = "fetched from `node_id`"
    LEADERLESS = "waits until `retry_at` for its next try, or for a new leader"
    FAILED = "its reader has to take an error first"
    ENDED = "closed"
