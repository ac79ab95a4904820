"""WithheldPartitions: a leader waits for the rebalance that follows an assignment with withheld partitions."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Final

from asyncgroup.group.membership import JOIN_GRACE
from asyncgroup.model import TopicPartition

__all__ = ["WithheldPartitions"]

_log = logging.getLogger("asyncgroup.group")

_MAX_NAMED: Final = 10
"""The largest number of partitions in a log message and a reason."""


class WithheldPartitions:
    """What this leader withheld in its last assignment, and by when another rebalance has to follow.

    A cooperative assignor gives a partition that another member owns to no member at first (KIP-429): its owner revokes it
    and joins again, and the rebalance that this begins assigns it. A static owner that is restarted in between does not begin
    one: the coordinator gives its new process the present assignment (KIP-345, in Kafka's `GroupMetadataManager`
    `updateStaticMemberThenRebalanceOrCompleteJoin`). The partition then has no owner until the group rebalances for another
    reason, as with Java's `ConsumerCoordinator`. Here the leader joins again, which begins a rebalance also in a stable
    group (`classicGroupJoinExistingMember` in the same file).

    It waits for its own `rebalance_timeout`, as a leader does not know those of other members, and for `JOIN_GRACE` and a
    heartbeat, by which it learns of a rebalance. If an owner revokes for longer than that, no rebalance is added: it joins
    in the one that the leader has begun. A partition that is withheld in the next generation as well has an owner that is
    still in the group and does not join: the wait doubles each time. (An owner that is down is removed by the rebalance as
    it sends no SyncGroup, KAFKA-12890, by older brokers at the end of its session.)

    A static leader that returns after a restart keeps its assignment (KIP-814); by `cooperative-sticky` it waits as long again,
    if a partition has no owner then. Not covered: leaders with a user's assignor that return, and other clients'.
    """

    def __init__(self, group_id: str, rebalance_timeout: float, heartbeat_interval: float) -> None:
        """`rebalance_timeout` and `heartbeat_interval` are the leader's, in seconds."""
        self._group_id = group_id
        self._first_wait = rebalance_timeout + JOIN_GRACE + heartbeat_interval
        self._wait = self._first_wait  # in this generation
        self._partitions: frozenset[TopicPartition] = frozenset()

    def __repr__(self) -> str:
        return f"<WithheldPartitions: {len(self._partitions)}>"

    def replace(self, partitions: frozenset[TopicPartition]) -> None:
        """Take note of a new generation, whose assignment withheld these; none if this member did not make it."""
        self._wait = 2 * self._wait if partitions & self._partitions else self._first_wait
        self._partitions = partitions

    @contextlib.contextmanager
    def watched(self, synced_at: float | None, rejoin: Callable[[str], bool]) -> Iterator[None]:
        """Call `rejoin(reason)` if the block, which lasts for a generation, outlasts the wait. It returns whether it joins again.

        `synced_at` is the loop time of the response to SyncGroup, by default now.
        """
        if not self._partitions:
            yield
            return
        loop = asyncio.get_running_loop()
        since = loop.time() if synced_at is None else synced_at
        timer = loop.call_at(since + self._wait, self._on_overdue, rejoin)
        try:
            yield
        finally:
            timer.cancel()

    def _on_overdue(self, rejoin: Callable[[str], bool]) -> None:
        named = ", ".join(map(str, sorted(self._partitions)[:_MAX_NAMED]))
        if (more := len(self._partitions) - _MAX_NAMED) > 0:
            named += f" and {more} more"
        if rejoin(f"no member owns {named}, and no rebalance has followed"):
            text = "group %s: no member owns %s: the former owner has not joined again within %.3g s; beginning a rebalance"
            _log.warning(text, self._group_id, named, self._wait)
