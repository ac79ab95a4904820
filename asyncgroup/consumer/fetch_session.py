"""Fetch requests, and the client's side of incremental fetch sessions (KIP-227; `FetchSessionHandler.java`). Pure state.

The broker keeps the partitions of the last fetch: a request names only those that changed since then, a response only those
with records, an error or another offset (high watermark, log start) than before. An idle consumer of two hundred partitions
sends and receives a few dozen bytes instead of kilobytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple
from uuid import UUID

from asyncgroup.cluster.requests.list_offsets import ISOLATION_LEVELS
from asyncgroup.config import ConsumerConfig
from asyncgroup.errors import ErrorCode, ProtocolError
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m

__all__ = [
    "FINAL_EPOCH",
    "INITIAL_EPOCH",
    "SESSION_ERRORS",
    "SESSION_VERSION",
    "TOPIC_ID_VERSION",
    "FetchSession",
    "PartitionData",
    "SessionRequest",
    "build_fetch_request",
    "response_limit",
    "sessionless_request",
]

SESSION_VERSION: Final = 7
"""The first Fetch version with sessions (KIP-227)."""

TOPIC_ID_VERSION: Final = 13
"""The first Fetch version that identifies topics by id (KIP-516)."""

RESPONSE_SHARE: Final = 8
"""A response may have at most 1/8 of `buffer_bytes`: while its partitions are copied out of it, it takes memory beyond the
budget. The first batch of a response may exceed the limit (KIP-74)."""

RACK_ID_VERSION: Final = 11
"""The first Fetch version with a rack id (KIP-392)."""

LAST_FETCHED_EPOCH_VERSION: Final = 12
"""The first Fetch version with the last fetched epoch, by which brokers detect diverging logs (KIP-595)."""

INITIAL_EPOCH: Final = 0
"""Session epoch of a request that starts a new session and ends the given one."""

FINAL_EPOCH: Final = -1
"""Session epoch of a request without a session; it ends the given one."""

_LAST_EPOCH: Final = 2**31 - 1

SESSION_ERRORS: Final = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)
"""Top-level error codes after which a new session is started: the broker has evicted the old one or was restarted, expects another
epoch, or a topic id does not fit the session."""


class PartitionData(NamedTuple):
    """What a request says of one partition; `FetchRequest.PartitionData` in Java."""

    offset: int
    leader_epoch: int
    """The leader's current epoch; -1 if unknown."""
    max_bytes: int
    fetched_epoch: int = -1
    """The leader epoch of the record before `offset`; -1 if unknown."""
    topic_id: UUID = m.NO_UUID


class SessionRequest(NamedTuple):
    """The part of a Fetch request that depends on the session."""

    session_id: int
    epoch: int
    wanted: Mapping[TopicPartition, PartitionData]
    """The partitions to add or change, in order of precedence."""
    forgotten: list[tuple[TopicPartition, UUID]]
    """The partitions to remove from the session, with their topics' ids."""


def sessionless_request(wanted: Mapping[TopicPartition, PartitionData]) -> SessionRequest:
    """Return a full fetch request that neither starts nor ends a session."""
    return SessionRequest(0, FINAL_EPOCH, wanted, [])


class FetchSession:
    """One session with one broker; requests are sent one after another.

    `next_request` returns what to send for the currently wanted partitions and assumes that the broker receives it;
    `handle_response`, `handle_error` or `invalidate` has to follow. After anything unexpected the next request starts a
    new session, and ends the old one if the broker may still have it.
    """

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.session_id = 0
        self.epoch = INITIAL_EPOCH
        self.session_partitions: dict[TopicPartition, PartitionData] = {}
        """The session's partitions as the broker knows them once it has received the in-flight request."""
        self._due: Collection[TopicPartition] = ()
        """The partitions that the next response has to name, with or without news."""
        self._by_id = False  # whether the session identifies topics by id
        self._is_used = False  # whether the last request's version has sessions
        self._error_count = 0  # consecutive top-level errors

    def __repr__(self) -> str:
        return (
            f"<FetchSession node {self.node_id}: id {self.session_id}, epoch {self.epoch}, "
            f"{len(self.session_partitions)} partitions>"
        )

    def next_request(
        self,
        wanted: Mapping[TopicPartition, PartitionData],
        version: int,
        touched: Iterable[TopicPartition] | None = None,
    ) -> SessionRequest:
        """Return what to send in a version so that the broker reads exactly these partitions.

        `touched` names, in order of precedence, those that may differ from the last request; None: any of them may.
        """
        by_id = version >= TOPIC_ID_VERSION
        if by_id is not self._by_id:
            self.invalidate()  # a session uses names or ids; a mix is answered with FETCH_SESSION_TOPIC_ID_ERROR
            self._by_id = by_id
        self._is_used = version >= SESSION_VERSION
        if not self._is_used:
            self._due = tuple(wanted)
            return sessionless_request(wanted)
        known = self.session_partitions
        if self.epoch == INITIAL_EPOCH:
            self.session_partitions = dict(wanted)
            self._due = tuple(wanted)
            return SessionRequest(self.session_id, INITIAL_EPOCH, wanted, [])
        changed: dict[TopicPartition, PartitionData] = {}
        forgotten: list[tuple[TopicPartition, UUID]] = []
        added: list[TopicPartition] = []
        for tp in [*wanted, *known] if touched is None else touched:
            now, before = wanted.get(tp), known.get(tp)
            if now == before:
                continue
            # the broker has to drop partitions that are not wanted any more, and those of another topic by now
            is_dropped = now is None or (by_id and before is not None and now.topic_id != before.topic_id)
            if before is not None and is_dropped:
                forgotten.append((tp, before.topic_id))
            if now is None:
                del known[tp]
                continue
            changed[tp] = known[tp] = now
            if before is None or is_dropped:
                added.append(tp)
        self._due = added
        return SessionRequest(self.session_id, self.epoch, changed, forgotten)

    def handle_response(
        self, response: m.FetchResponse, partitions: Collection[TopicPartition]
    ) -> list[TopicPartition]:
        """Update the session after a response without a top-level error; `partitions` are those that it contains.

        Returns the partitions that it lacks although they are new to the session: a broker names each of them in its first
        response. Java discards a full response that lacks one (`FetchSessionHandler.verifyFullFetchResponsePartitions`); here
        the others are used, and the next request starts a new session. Raises ProtocolError for a response with a partition
        that is not in the session; it must not be used then.
        """
        self._error_count = 0
        is_first = self.epoch == INITIAL_EPOCH
        if not partitions and response.throttle_time_ms > 0:  # a throttled request is not processed (KIP-219)
            self._continue(0 if is_first else response.session_id)
            return []
        if self._is_used and (unknown := [tp for tp in partitions if tp not in self.session_partitions]):
            self._restart(response.session_id if is_first else self.session_id)
            raise ProtocolError(
                f"fetch from node {self.node_id}: {unknown[0]} is not in the session {self.session_id}"
            )
        found = set(partitions) if self._due else ()
        lacking = [tp for tp in self._due if tp not in found]
        if self._is_used and not lacking:
            self._continue(response.session_id)
        elif self._is_used:
            self._restart(response.session_id)
        return lacking

    def _continue(self, session_id: int) -> None:
        """Advance the session. Id 0 means that the broker has none: its cache is full, or ours was evicted."""
        if session_id == 0:
            self._restart(0)
        else:
            self.session_id = session_id
            self.epoch = 1 if self.epoch == _LAST_EPOCH else self.epoch + 1

    def handle_error(self, code: int) -> bool:
        """Update the session after a top-level error; return whether to retry at once in a new session.

        Only the first of consecutive errors is retried at once: a broker that refuses every new session must not be
        asked without pauses.
        """
        self._restart(0 if code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND else self.session_id)
        self._error_count += 1
        return code in SESSION_ERRORS and self._error_count == 1

    def invalidate(self) -> None:
        """Start a new session with the next request and end the old one: the outcome of the last request is unknown."""
        self._restart(self.session_id)

    def _restart(self, session_id: int) -> None:
        self.session_id = session_id
        self.epoch = INITIAL_EPOCH
        self.session_partitions = {}


# --- requests --------------------------------------------------------------------------------------------------------


def response_limit(config: ConsumerConfig) -> int:
    """Return the largest number of bytes that a response with several batches may have."""
    return max(1, min(config.fetch_max_bytes, config.buffer_bytes // RESPONSE_SHARE))


def build_fetch_request(
    sent: SessionRequest,
    config: ConsumerConfig,
    max_wait: float,
    version: int,
    *,
    send_rack: bool = True,
    max_bytes: int | None = None,
) -> m.FetchRequest:
    """Build the request in a version; from 13 on every partition must have its topic's id.

    `max_bytes` is the limit of the response with several batches, by default the `response_limit`.

    A leader that gets no rack id returns records itself instead of advising a preferred read replica (KIP-392).
    """
    return m.FetchRequest(
        max_wait_ms=int(max_wait * 1000),
        min_bytes=config.fetch_min_bytes,
        max_bytes=response_limit(config) if max_bytes is None else max_bytes,
        isolation_level=ISOLATION_LEVELS[config.isolation_level],
        session_id=sent.session_id,
        session_epoch=sent.epoch,
        topics=_topics(sent.wanted, version),
        forgotten_topics_data=_forgotten(sent.forgotten, by_id=version >= TOPIC_ID_VERSION),
        rack_id=config.rack_id if send_rack and version >= RACK_ID_VERSION else "",
    )


def _topics(wanted: Mapping[TopicPartition, PartitionData], version: int) -> list[m.FetchRequest.FetchTopic]:
    fetch = m.FetchRequest
    by_id = version >= TOPIC_ID_VERSION
    has_epoch = version >= LAST_FETCHED_EPOCH_VERSION
    topics: dict[str, m.FetchRequest.FetchTopic] = {}
    for tp, data in wanted.items():
        topic = topics.get(tp.topic)
        if topic is None:
            named = None if by_id else fetch.FetchTopic(topic=tp.topic)
            topic = topics[tp.topic] = named or fetch.FetchTopic(topic_id=data.topic_id)
        topic.partitions.append(
            fetch.FetchPartition(
                partition=tp.partition,
                current_leader_epoch=data.leader_epoch,
                fetch_offset=data.offset,
                last_fetched_epoch=data.fetched_epoch if has_epoch else -1,
                partition_max_bytes=data.max_bytes,
            )
        )
    return list(topics.values())


def _forgotten(
    partitions: Iterable[tuple[TopicPartition, UUID]], *, by_id: bool
) -> list[m.FetchRequest.ForgottenTopic]:
    topics: dict[str | UUID, m.FetchRequest.ForgottenTopic] = {}
    for tp, topic_id in partitions:
        key = topic_id if by_id else tp.topic
        if key not in topics:
            named = {"topic_id": topic_id} if by_id else {"topic": tp.topic}
            topics[key] = m.FetchRequest.ForgottenTopic(**named)
        topics[key].partitions.append(tp.partition)
    return list(topics.values())
