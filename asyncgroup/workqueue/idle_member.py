"""IdleMember: a member of a shared queue without partitions is a problem, and one log line: it never gets a record."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from asyncgroup.cluster import ClusterClient
from asyncgroup.group.topics import Pattern

__all__ = ["IdleMember", "known_partitions"]

_log = logging.getLogger("asyncgroup.workqueue")

GRACE: Final = 10.0
"""Seconds in a session without a partition before it is a problem: partitions that move are assigned later (KIP-429, KIP-848)."""


def known_partitions(cluster: ClusterClient, topics: list[str] | Pattern) -> int | None:
    """Return the number of partitions of the topics by the present metadata; None if it is unknown, as for patterns."""
    if not isinstance(topics, list):
        return None
    found = cluster.view.topics
    return sum(len(found[name].partitions) for name in topics if name in found) or None


class IdleMember:
    """Watches whether the member has partitions; `partitions()` is the number of those of the queue's topics, None if unknown.

    Pulsar's Shared subscriptions distribute records over any number of consumers, a consumer group partitions. With `is_standby`, in
    the modes with an order, members without partitions are on purpose.
    """

    def __init__(self, group_id: str, partitions: Callable[[], int | None], *, is_standby: bool) -> None:
        self._group_id = group_id
        self._partitions = partitions
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
            self._timer = asyncio.get_running_loop().call_later(GRACE, self._report)

    def stop(self) -> None:
        """The session has ended: the next one may have partitions. What was reported stays until then."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def problems(self) -> list[str]:
        """Return what is wrong, in words."""
        if not self._is_idle:
            return []
        count = self._partitions()
        all_of_them = "all partitions" if count is None else f"all {count} partitions"
        if count == 1:
            all_of_them = "the only partition"
        others = f"other members have {all_of_them} of the topics"
        limit = "a group has work for as many members as partitions at most"
        return [f"this member has no partition, and gets no records: {others}; {limit}"]

    def _report(self) -> None:
        self._timer, self._is_idle = None, True
        for problem in self.problems():
            _log.warning("group %s: %s", self._group_id, problem)
