"""IdleMember: a member of a shared queue without partitions is a problem, and one log line: it never gets a record."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from asyncgroup.cluster import ClusterClient
from asyncgroup.config import ConsumerConfig
from asyncgroup.group.topics.topics import Pattern

__all__ = ["IdleMember", "grace", "known_partitions"]

_log = logging.getLogger("asyncgroup.workqueue")

MIN_GRACE: Final = 10.0
"""Seconds without a partition before it is a problem, at least."""


def grace(config: ConsumerConfig) -> float:
    """Return after how many seconds without a partition a member has none for good.

    Partitions that move are assigned when their holder has given them up, or is expelled (KIP-429, KIP-848).
    """
    return max(MIN_GRACE, config.rebalance_timeout, config.effective_session_timeout)


def known_partitions(cluster: ClusterClient, topics: list[str] | Pattern) -> int | None:
    """Return the number of partitions of the topics by the present metadata; None if it is unknown, as for patterns."""
    if not isinstance(topics, list):
        return None
    found = cluster.view.topics
    return sum(len(found[name].partitions) for name in topics if name in found) or None


class IdleMember:
    """Watches whether the member has partitions; `partitions()` is the number of those of the queue's topics, None if unknown.

    Pulsar's Shared subscriptions distribute records over any number of consumers, a consumer group partitions. With `is_standby`, in
    the modes with an order, members without partitions are on purpose. It is a problem after `grace` seconds.
    """

    def __init__(
        self, group_id: str, partitions: Callable[[], int | None], grace: float, *, is_standby: bool
    ) -> None:
        self._group_id = group_id
        self._partitions = partitions
        self._grace = grace
        self._is_standby = is_standby
        self._timer: asyncio.TimerHandle | None = None
        self._is_idle = False

    def __repr__(self) -> str:
        return f"<IdleMember of {self._group_id!r}: {'idle' if self._is_idle else 'not idle'}>"

    def note(self, *, has_partitions: bool) -> None:
        """The member is in a session, and has partitions or none."""
        if has_partitions:
            self._is_idle = False
        if has_partitions or self._is_standby:
            self.stop()
        elif self._timer is None and not self._is_idle:
            self._timer = asyncio.get_running_loop().call_later(self._grace, self._report)

    def stop(self) -> None:
        """The session has ended: the next one may have partitions. A reported problem stays until then."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def problems(self) -> list[str]:
        """Return what is wrong, in words."""
        if not self._is_idle:
            return []
        problem = "this member has no partition, and gets no records"
        count = self._partitions()
        if count is None:
            return [problem]
        all_of_them = "the only partition" if count == 1 else f"all {count} partitions"
        limit = "a group has work for as many members as partitions at most"
        return [f"{problem}: other members have {all_of_them} of the topics; {limit}"]

    def _report(self) -> None:
        self._timer, self._is_idle = None, True
        for problem in self.problems():
            _log.warning("group %s: %s", self._group_id, problem)
