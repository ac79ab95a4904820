"""Claim: one assigned partition, as an async iterator of its records; and ClaimSource, which makes the claims of a group.

`Claim` shows what a handler may call; `ClaimState`, its `_state`, is for the other files of this room.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any, Final, TypeAlias

from asyncgroup.checks import check_metadata
from asyncgroup.cluster import ClusterClient
from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.broker_partitions import lanes_of
from asyncgroup.consumer.fetch_session import FetchSession
from asyncgroup.consumer.fetch_state import Budget
from asyncgroup.consumer.fetcher import Fetcher
from asyncgroup.consumer.interceptors import Interceptors
from asyncgroup.consumer.list_offsets import StartOffset, resolve_start_offsets
from asyncgroup.consumer.partition_consumer import Batches, PartitionConsumer, partition_of
from asyncgroup.errors import BrokerError, ConfigError, SessionEnd
from asyncgroup.group.topics import KnownTopics
from asyncgroup.model import Batch, Record, TopicPartition
from asyncgroup.offsets import GROUP_LANE, CommittedOffset, Committer, MemberIdentity, PartitionMarks
from asyncgroup.offsets.committer import IsFinal
from asyncgroup.offsets.fetch_offsets import fetch_offsets

__all__ = ["Claim", "ClaimSource", "ClaimState", "StartOffsets", "connect_offsets"]


class ClaimState:
    """The parts of a claim: where its records come from, its marks, and its end."""

    __slots__ = ("_ended", "cause", "consumer", "initial_metadata", "offsets")

    def __init__(self, consumer: PartitionConsumer, offsets: PartitionMarks) -> None:
        self.consumer = consumer
        self.offsets = offsets
        self.initial_metadata = offsets.metadata
        self.cause: SessionEnd | None = None
        """Why the claim ended; None while it is live."""
        self._ended = asyncio.Event()

    @property
    def ended(self) -> bool:
        """Whether iteration is over."""
        return self.cause is not None

    async def wait_ended(self) -> None:
        """Wait until the claim ends."""
        await self._ended.wait()

    def end(self, cause: SessionEnd) -> None:
        """Stop iteration before the next record; a second call does nothing."""
        if self.cause is None:
            self.cause = cause
            self._ended.set()
            partition_of(self.consumer).end()

    def check_mark(self, done: object, metadata: object = "") -> None:
        """Raise ConfigError where `Claim.mark` would, without a change of state. Safe to call from any thread."""
        if not isinstance(done, Record | Batch):
            raise ConfigError("done", done, "a Record or a Batch")
        tp = self.consumer.tp
        if done.partition != tp.partition or done.topic != tp.topic:
            raise ConfigError("done", TopicPartition(done.topic, done.partition), f"a record of {tp}")
        check_metadata(metadata)


class Claim:
    """An assigned partition: an async iterator of its records, with `mark` for those that are done.

    Iteration ends when the claim is revoked or the session ends. After `break`, a second loop continues at the next
    record. Use a claim in the event loop only; for blocking handlers see `in_thread`.
    """

    __slots__ = ("__weakref__", "_consumer", "_offsets", "_partition", "_state", "_topic")

    def __init__(self, state: ClaimState) -> None:
        self._state = state
        self._consumer = state.consumer
        self._offsets = state.offsets
        # attributes of their own, as `mark` is called per record
        self._topic, self._partition = state.consumer.tp

    def __repr__(self) -> str:
        if self.ended:
            state = f"ended: {type(self.cause).__name__}"
        else:
            state = "paused" if self.paused else "stalled" if self.stalled else "live"
        return f"<Claim {self.tp}: {state}, lag {self.lag}, next commit {self.next_mark}>"

    @property
    def tp(self) -> TopicPartition:
        """Topic and partition."""
        return self._consumer.tp

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._topic

    @property
    def partition(self) -> int:
        """The partition number."""
        return self._partition

    @property
    def initial_offset(self) -> int:
        """The offset at which the claim began to read."""
        return self._consumer.initial_offset

    @property
    def initial_metadata(self) -> str:
        """The metadata committed with `initial_offset`; empty if there is none."""
        return self._state.initial_metadata

    @property
    def position(self) -> int:
        """The offset of the next record that iteration returns."""
        return self._consumer.position

    @property
    def next_mark(self) -> int:
        """The first offset that is not marked as done: the offset to commit."""
        return self._offsets.next_offset

    @property
    def high_water_mark(self) -> int:
        """The high watermark by the last fetch, with `read_committed` the last stable offset; -1 before the first."""
        return self._consumer.high_water_mark

    @property
    def lag(self) -> int:
        """Offsets between the position and `high_water_mark`."""
        return self._consumer.lag

    @property
    def stalled(self) -> bool:
        """Whether no record was read for `max_processing_time` while some were buffered; fetching is suspended."""
        return self._consumer.stalled

    @property
    def paused(self) -> bool:
        """Whether the user paused the partition."""
        return self._consumer.paused

    @property
    def ended(self) -> bool:
        """Whether iteration is over."""
        return self._state.ended

    @property
    def cause(self) -> SessionEnd | None:
        """Why the claim ended; None while it is live."""
        return self._state.cause

    async def wait_ended(self) -> None:
        """Wait until the claim ends."""
        await self._state.wait_ended()

    def __aiter__(self) -> PartitionConsumer:
        """Return the iterator of the records; `anext(claim)` reads from the same one, at the cost of one more call."""
        return self._consumer

    def __anext__(self) -> Coroutine[Any, Any, Record]:
        return self._consumer.__anext__()

    def batches(
        self, *, max_records: int = 10_000, max_bytes: int = 1 << 20, max_wait: float = 0.0
    ) -> Batches:
        """Iterate over batches of buffered records and those that arrive within `max_wait` seconds, up to the limits.

        If a batch raises CorruptRecordsError while its records are read (invalid content with a valid checksum),
        reading goes back to its start: the next read raises again, and marks do not advance past it until a seek
        does. Raises ConfigError for limits below 1.
        """
        return self._consumer.batches(max_records=max_records, max_bytes=max_bytes, max_wait=max_wait)

    def mark(self, done: Record | Batch, metadata: str = "") -> None:
        """Mark everything up to and including this record or batch as done, so that it may be committed.

        Marks only move forwards: with parallel work, do not mark a record while an earlier one is unfinished. The mark
        is dropped if the claim was lost or its session is over. Raises ConfigError for a record of another partition,
        and for a value that is neither a Record nor a Batch.
        """
        try:
            if done.partition != self._partition or done.topic != self._topic:
                # its offset would be committed for this partition, past records that were not read
                raise ConfigError(
                    "done", TopicPartition(done.topic, done.partition), f"a record of {self.tp}"
                )
            # tested in this order because isinstance is slow for Batch, a subclass of an abstract class
            last = done.offset if isinstance(done, Record) else done.last_offset
        except AttributeError:
            raise ConfigError("done", done, "a Record or a Batch") from None
        self._offsets.advance(last + 1, metadata, done.leader_epoch)

    def seek(self, offset: StartOffset) -> None:
        """Continue reading at `offset`: buffered records are dropped, marks stay.

        `offset` is a number, `"earliest"`, `"latest"`, a datetime with a time zone (the first record with that
        timestamp or later) or a timedelta (the first record not older than that). It returns at once: an offset
        lookup happens before the next fetch, and `position` is unchanged until then. An error of the lookup that is
        not retriable is raised by the iterator once; reading then continues at the old position.

        Raises ConfigError for any other value, and for a datetime without a time zone.
        """
        self._consumer.seek(offset)


StartOffsets: TypeAlias = Mapping[TopicPartition, CommittedOffset]
"""By partition: the offset at which its claim begins to read, and the metadata of the last commit."""

_MEMBER_NUMBERS: Final = count(1)


class ClaimSource:
    """Makes the claims of one group object, and what they read and commit with. Outlives sessions.

    What the user paused, the topics seen and the brokers' fetch sessions are kept from one session to the next: the
    first request of the next session closes a broker's old fetch session.
    """

    def __init__(
        self, cluster: ClusterClient, group_id: str, config: ConsumerConfig, interceptors: Interceptors
    ) -> None:
        self.cluster = cluster
        self.group_id = group_id
        self.config = config
        self.paused: set[TopicPartition] = set()
        """The partitions that the user paused, assigned or not."""
        self.known_topics = KnownTopics()
        self._interceptors = interceptors
        self._fetch_sessions: dict[int, FetchSession] = {}  # by node id
        # connections of its own, also among members that share a Cluster
        self._lane_suffix = f"-group-{next(_MEMBER_NUMBERS)}"

    @property
    def lanes(self) -> Iterable[str]:
        """The purposes of the connections that fetch."""
        return lanes_of(self._lane_suffix)

    def make_committer(
        self,
        identity: Callable[[], MemberIdentity],
        on_lost: Callable[[BrokerError], None],
        is_final: IsFinal,
    ) -> Committer:
        """Create the committer of a session."""
        return Committer(
            self.cluster,
            self.group_id,
            retry_max=self.config.commit_retry_max,
            retention=self.config.offset_retention,
            identity=identity,
            on_lost=on_lost,
            is_final=is_final,
        )

    def make_fetcher(self, spawn: Callable[..., None], on_error: Callable[[Exception], Any]) -> Fetcher:
        """Create the fetcher of a session."""
        return Fetcher(
            self.cluster,
            self.config,
            spawn,
            on_error,
            lane_suffix=self._lane_suffix,
            sessions=self._fetch_sessions,
        )

    async def find_start_offsets(self, partitions: Sequence[TopicPartition]) -> StartOffsets:
        """Return where each claim begins: at its committed offset, or by `auto_offset_reset` if there is none.

        A partition created while the group object was running begins at the log start, also with `error`, since none of
        its records can have been consumed. Sends one OffsetFetch, and one ListOffsets per leader of partitions without
        a committed offset. Raises BrokerError, TransportError, OffsetOutOfRangeError.
        """
        if not partitions:
            return {}
        # waits for open transactions that commit offsets of the group (KIP-447), as Kafka's consumers do
        committed = await fetch_offsets(
            self.cluster, self.group_id, partitions, lane=GROUP_LANE, require_stable=True
        )
        starts = await resolve_start_offsets(
            self.cluster,
            partitions,
            {tp: at.offset for tp, at in committed.items()},
            self.config,
            earliest_for=[tp for tp in partitions if self.known_topics.was_added(tp)],
            reader=f"group {self.group_id!r}",
        )
        return {tp: committed.get(tp) or CommittedOffset(offset) for tp, offset in starts.items()}

    def make_claim(
        self, committer: Committer, budget: Budget, tp: TopicPartition, start: CommittedOffset
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
        )
        if tp in self.paused:
            consumer.pause()
        marks = committer.manage(tp, *start)
        connect_offsets(consumer, marks)
        return Claim(ClaimState(consumer, marks))

    def apply_pauses(self, claims: Iterable[Claim]) -> None:
        """Pause or resume each claim as the user did."""
        for claim in claims:
            if claim.paused != (claim.tp in self.paused):
                consumer = claim._state.consumer
                (consumer.pause if claim.tp in self.paused else consumer.resume)()


def connect_offsets(consumer: PartitionConsumer, offsets: PartitionMarks) -> None:
    """Connect a consumer's callbacks to its marks: resets, truncation, skipped or corrupt records, the topic id.

    The topic id is set before the first fetch, so that a recreation of the topic since the offset was committed is
    noticed.
    """
    partition = partition_of(consumer)
    partition.fetch_position.topic_id = offsets.topic_id
    partition.fetch_position.on_topic_id = partial(offsets.bind_topic, position=lambda: partition.position)
    partition.on_reset = offsets.rebase
    partition.on_restart = partial(offsets.restart, position=lambda: partition.position)
    partition.on_skipped_range = offsets.skip_range
    partition.on_unreadable_batch = partial(offsets.hold_back, position=lambda: partition.position)
