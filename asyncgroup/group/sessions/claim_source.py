"""ClaimSource: makes the claims of a group, and what they read and commit with."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import count
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from asyncgroup.cluster import Cluster
from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.fetch_plan import lanes_of
from asyncgroup.consumer.fetch_session import FetchSession
from asyncgroup.consumer.fetch_state import Budget
from asyncgroup.consumer.fetcher import Fetcher
from asyncgroup.consumer.interceptors import Interceptors
from asyncgroup.consumer.list_offsets import ListOffsetsResult, list_offsets_once, reset_timestamps
from asyncgroup.consumer.partition import TopicPartitionState
from asyncgroup.consumer.partition_consumer import PartitionConsumer
from asyncgroup.consumer.position_listener import PositionListener
from asyncgroup.error_codes import error_name
from asyncgroup.errors import BrokerError
from asyncgroup.group.membership import HeartbeatStatus
from asyncgroup.group.sessions.claim import Claim, ClaimState
from asyncgroup.group.sessions.topic_watch import ChangePauses
from asyncgroup.group.topics.topics import KnownTopics, ResolvedTopics, Subscription, resolve_topics
from asyncgroup.model import TopicPartition
from asyncgroup.offsets import GROUP_LANE, Committer, MemberIdentity, PartitionMarks
from asyncgroup.offsets.fetch_offsets import CommitsResult, StoredCommit, fetch_commits_once
from asyncgroup.wire.messages import NO_UUID

__all__ = ["ClaimSource", "ClaimStart", "StartOffsets", "connect_offsets"]


_log = logging.getLogger("asyncgroup.group")


class ClaimStart(NamedTuple):
    """Where a claim begins to read."""

    offset: int
    leader_epoch: int = -1
    """Of the record before `offset`; -1 if unknown."""
    stored: StoredCommit | None = None
    """The group's commit at this offset; None if it begins by `auto_offset_reset`."""


StartOffsets: TypeAlias = Mapping[TopicPartition, ClaimStart]
"""Where the claim of each partition begins to read."""

_MEMBER_NUMBERS: Final = count(1)


class ClaimSource:
    """Makes the claims of one group object, and what they read and commit with. Outlives sessions.

    What the user paused, the topics seen and the brokers' fetch sessions are kept from one session to the next: the
    first request of the next session closes a broker's old fetch session.
    """

    def __init__(
        self,
        cluster: Cluster,
        group_id: str,
        config: ConsumerConfig,
        interceptors: Interceptors,
        member: Callable[[], MemberIdentity | None] | None = None,
    ) -> None:
        self.shared_cluster = cluster
        """The group's Cluster, for other clients of it."""
        self.cluster = cluster._inner
        self.group_id = group_id
        self.config = config
        self.paused: set[TopicPartition] = set()
        """The partitions that the user paused, assigned or not."""
        self.known_topics = KnownTopics()
        self.topic_changes = ChangePauses(config.retry_backoff, self.cluster.random)
        self.earliest_topics: set[str] = set()
        """Topics whose partitions begin at the log start without a commit, also if `auto_offset_reset` is `latest` or `error`."""
        self.optional_topics: set[str] = set()
        """Topics of the subscription that need not exist, as all of them with `missing_topics="wait"`."""
        self._interceptors = interceptors
        self._member = member  # that fetches offsets, with its epoch; None by the classic protocol
        self._fetch_sessions: dict[int, FetchSession] = {}  # by node id
        # separate connections, also among members that share a Cluster
        self._lane_suffix = f"-group-{next(_MEMBER_NUMBERS)}"

    @property
    def lanes(self) -> Iterable[str]:
        """The purposes of the connections that fetch."""
        return lanes_of(self._lane_suffix)

    def make_committer(
        self,
        identity: Callable[[], MemberIdentity],
        on_lost: Callable[[BrokerError], None],
        heartbeats: HeartbeatStatus,
    ) -> Committer:
        """Create the committer of a session."""
        return Committer(
            self.cluster,
            self.group_id,
            retry_max=self.config.commit_retry_max,
            retention=self.config.offset_retention,
            identity=identity,
            on_lost=on_lost,
            confirm_refusal=heartbeats.confirm_refusal,
            wait_joined=heartbeats.wait_joined,
        )

    def make_fetcher(
        self,
        spawn: Callable[..., None],
        on_error: Callable[[Exception], Any],
        on_tick: Callable[[], None],
    ) -> Fetcher:
        """Create the fetcher of a session."""
        return Fetcher(
            self.cluster,
            self.config,
            spawn,
            on_error,
            lane_suffix=self._lane_suffix,
            sessions=self._fetch_sessions,
            on_tick=on_tick,
        )

    async def resolve_topics(self, subscription: Subscription) -> ResolvedTopics:
        """Return the topics of a subscription that exist now, and log what is absent. Raises as `resolve_topics`."""
        # a copy: only what changes in this resolution is logged
        known, before = self.known_topics, dict(self.known_topics.absent)
        resolved = await resolve_topics(
            self.cluster,
            subscription,
            known,
            waits_for_missing=self._waits_for_missing,
            optional=self.optional_topics,
        )
        for topic, absence in sorted(known.absent.items()):
            # logged before, in the same state
            if topic in before and before[topic].is_missing == absence.is_missing:
                continue
            _log.warning("group %s: topic %r %s", self.group_id, topic, self._absence_text(topic))
        for topic in sorted(before.keys() - known.absent.keys()):
            text = "exists now" if before[topic].is_missing else "can be read now"
            _log.info("group %s: topic %r %s", self.group_id, topic, text)
        return resolved

    def _absence_text(self, topic: str) -> str:
        absence, is_known = self.known_topics.absent[topic], topic in self.known_topics
        ends = ", its claims end" if is_known else ""
        if absence.is_missing:
            since = " any more" if is_known else ""
            return f"does not exist{since}{ends}; it is read from its start once it exists"
        return f"has the error {error_name(absence.code)}{ends}; it is read once that has ended"

    def may_appear(self, topics: Iterable[str]) -> bool:
        """Whether the member waits for topics that are unknown: right after its recreation one still is to some brokers."""
        return self._waits_for_missing or all(
            topic in self.known_topics or topic in self.optional_topics for topic in topics
        )

    @property
    def _waits_for_missing(self) -> bool:
        return self.config.missing_topics == "wait"

    async def fetch_commits(self, partitions: list[TopicPartition]) -> CommitsResult:
        """Request the group's commits of these partitions once.

        A partition whose offset an open transaction may still change has an error (KIP-447), as in Kafka's consumers. Raises
        BrokerError, TransportError.
        """
        return await fetch_commits_once(
            self.cluster, self.group_id, partitions, lane=GROUP_LANE, require_stable=True, member=self._member
        )

    def claim_starts(
        self, commits: Mapping[TopicPartition, StoredCommit]
    ) -> tuple[StartOffsets, set[TopicPartition]]:
        """Return where claims begin by these commits, and the partitions whose commit is of a deleted topic of the same name."""
        recreated = {tp for tp, commit in commits.items() if self._is_of_deleted_topic(tp, commit)}
        starts = {
            tp: ClaimStart(commit.committed.offset, commit.committed.leader_epoch, commit)
            for tp, commit in commits.items()
            # their offsets are of another log
            if tp not in recreated
        }
        return starts, recreated

    def reset_timestamps(
        self, partitions: Iterable[TopicPartition], recreated: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Return with which timestamps the start offsets of partitions without a commit are looked up.

        A partition created while the group object was running begins at the log start, also with `error`, since none of
        its records can have been consumed; so does one of a topic that was `recreated`. Raises OffsetOutOfRangeError with the
        policy `error`.
        """
        wanted = list(partitions)
        earliest = [
            tp
            for tp in wanted
            if self.known_topics.was_added(tp) or tp in recreated or tp.topic in self.earliest_topics
        ]
        reader = f"group {self.group_id!r}"
        return reset_timestamps(wanted, self.config, earliest_for=earliest, reader=reader)

    async def list_start_offsets(
        self, partitions: Iterable[TopicPartition], recreated: Collection[TopicPartition]
    ) -> ListOffsetsResult:
        """Ask the leaders of partitions without a commit for their start offsets once; see `reset_timestamps`."""
        timestamps = self.reset_timestamps(partitions, recreated)
        return await list_offsets_once(self.cluster, timestamps, self.config.isolation_level)

    def _is_of_deleted_topic(self, tp: TopicPartition, commit: StoredCommit) -> bool:
        """Whether the commit names another topic id than the topic has: it was deleted and recreated since."""
        topic = self.cluster.view.topics.get(tp.topic)
        # two ids, and both known: brokers and commits without ids say nothing
        ids = {commit.metadata.topic_id, NO_UUID if topic is None else topic.topic_id}
        return len(ids) == 2 and NO_UUID not in ids

    def make_claim(
        self, committer: Committer, budget: Budget, tp: TopicPartition, start: ClaimStart
    ) -> Claim:
        """Create a claim, paused if the user paused the partition. Nothing is fetched yet."""
        consumer = PartitionConsumer(
            tp,
            start.offset,
            self.config,
            budget,
            self.cluster.hooks,
            self._interceptors,
            start.leader_epoch,
            group_id=self.group_id,
        )
        if tp in self.paused:
            consumer.pause()
        # the user's text of the last commit is in the next one, until a mark has another
        text = "" if start.stored is None else start.stored.metadata.text
        marks = committer.manage(tp, start.offset, text, start.leader_epoch)
        connect_offsets(consumer, marks)
        return Claim(ClaimState(consumer, marks, start.stored, self._set_paused))

    def _set_paused(self, claim: Claim, paused: bool) -> None:
        """Pause or resume a claim, for its user."""
        # kept for partitions that move away and come back
        (self.paused.add if paused else self.paused.discard)(claim.tp)
        self.apply_pauses([claim])

    def apply_pauses(self, claims: Iterable[Claim]) -> None:
        """Pause or resume each claim as the user did."""
        for claim in claims:
            if claim.paused != (claim.tp in self.paused):
                consumer = claim._inner.consumer
                (consumer.pause if claim.tp in self.paused else consumer.resume)()


def connect_offsets(consumer: PartitionConsumer, offsets: PartitionMarks) -> None:
    """Keep a consumer's marks in step with its position.

    The topic id is set before the first fetch, so that a recreation of the topic since the offset was committed is
    noticed.
    """
    partition = consumer._inner
    partition.fetch_source.topic_id = offsets.topic_id
    partition.listener = _MarksListener(partition, offsets)


class _MarksListener(PositionListener):
    """Passes what happens to a position on to its marks."""

    def __init__(self, partition: TopicPartitionState, offsets: PartitionMarks) -> None:
        self._partition = partition
        self._offsets = offsets

    def _position(self) -> int:
        return self._partition.position

    def on_topic_id(self, topic_id: UUID) -> None:
        self._offsets.bind_topic(topic_id, self._position)

    def on_reset(self, offset: int, log_end: int) -> None:
        self._offsets.rebase(offset, log_end)

    def on_restart(self, offset: int, topic_id: UUID) -> None:
        self._offsets.restart(offset, topic_id, self._position)

    def on_skipped_range(self, start: int, end: int, epoch: int) -> None:
        self._offsets.skip_range(start, end, epoch)

    def on_unreadable_batch(self, offset: int) -> int:
        return self._offsets.hold_back(offset, self._position)

    def on_value_begun(self, first_offset: int, leader_epoch: int) -> None:
        self._offsets.hold_value(first_offset, leader_epoch)

    def on_value_completed(self, first_offset: int, last_offset: int) -> None:
        self._offsets.complete_value(first_offset, last_offset)

    def on_value_dropped(self, first_offset: int) -> None:
        self._offsets.release_value(first_offset)
