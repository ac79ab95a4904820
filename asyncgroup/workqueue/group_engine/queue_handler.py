"""QueueHandler: the handler of a work queue's group. Each claim is a ClaimFeed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from asyncgroup.group.sessions.claim import Claim
from asyncgroup.group.sessions.claim_source import ClaimSource
from asyncgroup.group.sessions.handler import Handler
from asyncgroup.group.sessions.session import Session
from asyncgroup.model import TopicPartition
from asyncgroup.workqueue.group_engine.claim_feed import ClaimFeed, FeedParts
from asyncgroup.workqueue.group_engine.claim_window import ClaimWindow
from asyncgroup.workqueue.group_engine.idle_member import IdleMember
from asyncgroup.workqueue.statistics import PartitionStatistics

__all__ = ["QueueHandler"]

_log = logging.getLogger("asyncgroup.workqueue")

NAMED: Final = 5
"""Partitions that a log line names."""

SHARED_BY: Final = 64
"""The most partitions that `ack_group_size` acknowledgements are committed for."""


class QueueHandler(Handler):
    """Connects the claims of a group to a queue.

    `check_session` is called in `setup`, and awaited if it is a coroutine function.
    """

    def __init__(self, parts: FeedParts, check_session: Callable[[Session], object]) -> None:
        self.session: Session | None = None
        """The present session, or None."""
        self.has_claims = asyncio.Event()
        """Set when the first session has its claims, or has none."""
        self.feeds: dict[TopicPartition, ClaimFeed] = {}
        """By partition, from the assignment to the end of the claim."""
        self._last: dict[TopicPartition, PartitionStatistics] = {}
        self._parts = parts
        self._check_session = check_session
        self._idle = IdleMember(
            parts.group_id,
            parts.partition_count,
            parts.idle_grace,
            is_standby=parts.queue.settings.mode.in_order,
        )

    def __repr__(self) -> str:
        return f"<QueueHandler: {len(self.feeds)} claims>"

    async def _open(self, session: Session, source: ClaimSource) -> None:  # noqa: ARG002
        """Read the retry topic from its start: no copy is skipped that was written before the first reader joined."""
        if (topic := self._parts.retry_topic) is not None:
            source.earliest_topics.add(topic)

    async def setup(self, session: Session) -> None:
        """Check the session."""
        checked = self._check_session(session)
        if asyncio.iscoroutine(checked):
            await checked
        self.session = session
        self._idle.note(has_partitions=bool(session.claims))
        if not session.claims:
            self.has_claims.set()

    async def on_assigned(self, session: Session, partitions: Sequence[TopicPartition]) -> None:
        """Restore the windows of the partitions, before their first fetch."""
        claims = {claim.tp: claim for claim in session.claims}
        for tp in partitions:
            self.feeds[tp] = ClaimFeed(self._parts, session, claims[tp])
        self._parts.limits.share_by(len(self.feeds))
        self._idle.note(has_partitions=bool(self.feeds))
        self._log_starts(session.group_id, partitions)
        self.has_claims.set()

    def _log_starts(self, group_id: str, partitions: Sequence[TopicPartition]) -> None:
        """Say once for each partition that records before its end are not delivered, because the group has no commit."""
        if not self._parts.begins_at_end:
            return
        feeds = [self.feeds[tp] for tp in sorted(partitions)]
        new = [str(each.work.tp) for each in feeds if each.skips_records]
        if new:
            more = f" and {len(new) - NAMED} more" if len(new) > NAMED else ""
            _log.warning(
                "group %s: no commit for %s%s: it begins at the end, and the records before are not delivered; "
                "initial_position='earliest' begins with them",
                group_id,
                ", ".join(new[:NAMED]),
                more,
            )

    async def consume_claim(self, session: Session, claim: Claim) -> None:  # noqa: ARG002
        """Feed the queue until the claim ends and its deliveries have ended."""
        await self.feeds[claim.tp].run()

    async def on_revoked(self, session: Session, partitions: Sequence[TopicPartition]) -> None:  # noqa: ARG002
        """Forget the partitions."""
        self._forget(partitions)

    async def on_lost(self, session: Session, partitions: Sequence[TopicPartition]) -> None:  # noqa: ARG002
        """Forget the partitions."""
        self._forget(partitions)

    def _forget(self, partitions: Sequence[TopicPartition]) -> None:
        for tp in partitions:
            if (feed := self.feeds.pop(tp, None)) is not None:
                feed.forget()
                if self._parts.queue.is_ended:
                    self._last[tp] = feed.statistics_at_end()
                self._parts.queue.became_inactive(tp)
        self._parts.limits.share_by(len(self.feeds))
        if self.session is not None:
            self._idle.note(has_partitions=bool(self.feeds))

    async def cleanup(self, session: Session) -> None:  # noqa: ARG002
        """Forget the session: only its last commit follows."""
        self.session = None
        self._idle.stop()

    def seek(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Continue at these offsets; those of partitions that were revoked are left out."""
        for tp, offset in offsets.items():
            if tp in self.feeds:
                self.feeds[tp].seek(offset)

    def at_close(self) -> tuple[PartitionStatistics, ...]:
        """Return the partitions whose claims have ended with the queue, as they were then."""
        return tuple(self._last[tp] for tp in sorted(self._last))

    def problems(self) -> list[str]:
        """Return what is wrong with the partitions, or that there are none, in words."""
        is_ended = self._parts.queue.is_ended
        return [
            *([] if is_ended else self._idle.problems()),
            *(problem for feed in self.feeds.values() for problem in feed.problems()),
        ]

    def window_of(self, tp: TopicPartition) -> ClaimWindow | None:
        """Return the window of a claim of the present session."""
        feed = self.feeds.get(tp)
        return None if feed is None else feed.window

    def is_commit_worth(self, acks: int) -> bool:
        """Return whether to commit `acks` acknowledgements, `ack_group_size` at least, before `ack_group_time` has passed.

        With more than SHARED_BY partitions among them a commit waits for more, as its cost grows with them, unless one
        partition has `ack_group_size` alone.
        """
        if acks <= SHARED_BY:  # nor are there more partitions
            return True
        size, changed = self._parts.queue.settings.ack_group_size, 0
        for feed in self.feeds.values():
            if count := feed.window.changes:
                changed += 1
                if count >= size:
                    return True
        return acks * SHARED_BY >= size * changed

    def note_commit(self) -> None:
        """Check after a commit which windows are nearly too large for the next one."""
        for feed in self.feeds.values():
            feed.check_size()
