"""Incremental fetch sessions (KIP-227; Kafka's `FetchSession`).

A client sends its partitions once and afterwards only changes. A response leaves out the partitions without records, error,
diverging epoch and preferred read replica whose high watermark and log start offset are those that were sent last.
Pure: the clock and the random generator are passed in.

If the cache is full, a new session evicts one that was idle for `eviction` seconds, or a smaller one that is older than
that.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

from asyncgroup.broker.log.producer_state import AbortedTransaction
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m

__all__ = ["FINAL_EPOCH", "INITIAL_EPOCH", "FetchContext", "FetchKey", "FetchPartitionData", "FetchSessions"]

INITIAL_EPOCH: Final = 0
"""Requests a new session (`FetchMetadata.INITIAL_EPOCH`)."""

FINAL_EPOCH: Final = -1
"""Requests no session, and closes the one named in the request (`FetchMetadata.FINAL_EPOCH`)."""

_LAST_EPOCH: Final = 2**31 - 1

FetchKey = tuple[str | UUID, int]
"""A partition as it is named in the request: by topic name up to version 12, by topic id from version 13."""


class _TopicIdKey(tuple[UUID, int]):
    """A FetchKey with a topic id, protected against hash collisions.

    `hash(UUID)` is that of an int and not randomized: a client could send thousands of ids with the same hash,
    which would make each dictionary access linear. The hash of the id's bytes is randomized.
    """

    __slots__ = ()

    def __hash__(self) -> int:
        return hash((self[0].bytes, self[1]))

    __eq__ = tuple.__eq__


class FetchPartitionData(NamedTuple):
    """The fetch result of one partition."""

    error: ErrorCode = ErrorCode.NONE
    high_watermark: int = -1
    log_start_offset: int = -1
    records: bytes | memoryview = b""
    diverging_epoch: tuple[int, int] | None = None
    """(epoch, end offset) up to which the reader's log and this one agree (KIP-595)."""
    leader: tuple[int, int] | None = None
    """(id, epoch) of the current leader, for a client that asked another node (KIP-951)."""
    last_stable_offset: int = -1
    aborted: Sequence[AbortedTransaction] | None = None
    """The aborted transactions that overlap `records` (KIP-98); None for read_uncommitted or if nothing was read."""
    preferred_read_replica: int = -1
    """The replica to fetch from instead (KIP-392)."""


class _CachedPartition:
    """A partition of a session: what is requested, and what was last returned (Kafka's `CachedPartition`)."""

    __slots__ = ("high_watermark", "log_start_offset", "wanted")

    def __init__(self, wanted: m.FetchRequest.FetchPartition) -> None:
        self.wanted = wanted
        self.high_watermark = -1
        self.log_start_offset = -1

    def update(self, fetched: FetchPartitionData) -> bool:
        """Store the result; return whether it differs from the last one and has to be sent."""
        # errors and advice are sent each time: the client acts on them, and asks again
        changed = (
            len(fetched.records) > 0
            or self.high_watermark != fetched.high_watermark
            or self.log_start_offset != fetched.log_start_offset
            or fetched.error != 0
            or fetched.diverging_epoch is not None
            or fetched.preferred_read_replica >= 0
        )
        self.store(fetched)
        return changed

    def store(self, fetched: FetchPartitionData) -> None:
        """Store what is returned for the partition."""
        # After an error the high watermark is unknown, so that the next successful result counts as a change.
        self.high_watermark = -1 if fetched.error else fetched.high_watermark
        self.log_start_offset = fetched.log_start_offset


@dataclass(slots=True)
class _FetchSession:
    id: int
    uses_topic_ids: bool
    epoch: int
    """The epoch that the next request must have."""
    created: float
    """Loop time in seconds."""
    used: float
    """Loop time of the last request in seconds."""
    names: dict[UUID, str]
    """See `FetchContext`."""
    partitions: dict[FetchKey, _CachedPartition] = field(default_factory=dict)
    """The partitions in the order in which they are read."""


def next_epoch(epoch: int) -> int:
    """Return the epoch of the request after one with `epoch`."""
    if epoch < 0:
        return FINAL_EPOCH
    # 0 would ask for a new session
    return 1 if epoch == _LAST_EPOCH else epoch + 1


RequestedPartitions = list[tuple[FetchKey, m.FetchRequest.FetchPartition]]
"""The partitions to read, in the order in which the response is filled."""


class FetchContext:
    """One Fetch request within its session: what to read, and which results to send (Kafka's `FetchContext`).

    `names` maps topic ids to the names that they had when the session first read them; with it an id of a deleted topic
    can still be explained.
    """

    def __init__(
        self,
        sessions: FetchSessions,
        wanted: RequestedPartitions,
        *,
        session: _FetchSession | None = None,
        create: bool = False,
        uses_topic_ids: bool = False,
        error: ErrorCode = ErrorCode.NONE,
    ) -> None:
        self.wanted = wanted
        self.error = error
        self._sessions = sessions
        self._session = session
        # if the session has another epoch when this request is answered, another request has overtaken it
        self._epoch = session.epoch if session else 0
        self.names: dict[UUID, str] = session.names if session else {}
        self._create = create
        self._uses_topic_ids = uses_topic_ids

    def answer(
        self, fetched: list[tuple[FetchKey, FetchPartitionData]]
    ) -> tuple[ErrorCode, int, list[tuple[FetchKey, FetchPartitionData]]]:
        """Return the error and the session id to send, and the partition results to send with them."""
        if self.error:
            return self.error, 0, []
        session = self._session
        if session is None:
            if not self._create:
                return ErrorCode.NONE, 0, fetched
            made = self._sessions.create(self.wanted, fetched, self._uses_topic_ids, self.names)
            return ErrorCode.NONE, made, fetched
        if session.epoch != self._epoch:  # another request of the session overtook this one
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH, session.id, []
        changed = []
        for key, result in fetched:
            cached = session.partitions.get(key)
            if cached is None or not cached.update(result):
                continue
            changed.append((key, result))
            if len(result.records) > 0:
                # Move it to the end, so that every partition is read first at some time when responses are full.
                session.partitions[key] = session.partitions.pop(key)
        return ErrorCode.NONE, session.id, changed


@dataclass(kw_only=True, slots=True, eq=False)
class FetchSessions:
    """The fetch sessions of one node (Kafka's `FetchSessionCache`)."""

    now: Callable[[], float]
    rng: random.Random
    slots: int = 1000
    eviction: float = 120.0
    _sessions: dict[int, _FetchSession] = field(init=False, default_factory=dict)

    def __repr__(self) -> str:
        return f"<FetchSessions {len(self)} of {self.slots}>"

    def __len__(self) -> int:
        return len(self._sessions)

    def keys(self, session_id: int) -> Iterable[FetchKey]:
        """Return the partitions of a session; none for an unknown one."""
        session = self._sessions.get(session_id)
        return () if session is None else session.partitions.keys()

    def context(self, request: m.FetchRequest, version: int) -> FetchContext:
        """Look up, create or close the session named in `request`."""
        by_id = version >= 13
        wanted = {
            _key(topic, partition.partition, by_id=by_id): partition
            for topic in request.topics
            for partition in topic.partitions
        }
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            # also with the initial epoch: a client that begins again has no use for its old session
            self._sessions.pop(request.session_id, None)
            create = request.session_epoch == INITIAL_EPOCH
            return FetchContext(self, list(wanted.items()), create=create, uses_topic_ids=by_id)
        session = self._sessions.get(request.session_id)
        if session is None:
            return FetchContext(self, [], error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.session_epoch:
            return FetchContext(self, [], error=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        # the client was upgraded, or downgraded: names and ids are different keys
        if session.uses_topic_ids != by_id:
            return FetchContext(self, [], error=ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        return self._continue(session, wanted, request, by_id=by_id)

    def _continue(
        self,
        session: _FetchSession,
        wanted: dict[FetchKey, m.FetchRequest.FetchPartition],
        request: m.FetchRequest,
        *,
        by_id: bool,
    ) -> FetchContext:
        for key, partition in wanted.items():
            cached = session.partitions.get(key)
            if cached is None:
                session.partitions[key] = _CachedPartition(partition)
            else:
                cached.wanted = partition
        for topic in request.forgotten_topics_data:
            for number in topic.partitions:
                session.partitions.pop(_key(topic, number, by_id=by_id), None)
        # a session without partitions is closed, and the response has session id 0: the next request begins another one
        if not session.partitions:
            del self._sessions[session.id]
            return FetchContext(self, list(wanted.items()))
        session.used = self.now()
        session.epoch = next_epoch(session.epoch)
        everything = [(key, cached.wanted) for key, cached in session.partitions.items()]
        return FetchContext(self, everything, session=session)

    def create(
        self,
        wanted: RequestedPartitions,
        fetched: list[tuple[FetchKey, FetchPartitionData]],
        uses_topic_ids: bool,
        names: dict[UUID, str] | None = None,
    ) -> int:
        """Create a session with these partitions and their first results; return its id, 0 if the cache is full."""
        now = self.now()
        if len(self._sessions) >= self.slots and not self._evict(now, len(wanted)):
            return 0
        session_id = 0
        # 0 means no session; ids are random, so that a client cannot guess another client's id
        while session_id == 0 or session_id in self._sessions:
            session_id = self.rng.randrange(1, 2**31)
        session = _FetchSession(session_id, uses_topic_ids, next_epoch(INITIAL_EPOCH), now, now, names or {})
        answered = dict(fetched)
        for key, partition in wanted:
            cached = session.partitions[key] = _CachedPartition(partition)
            cached.store(answered[key])
        self._sessions[session_id] = session
        return session_id

    def _evict(self, now: float, size: int) -> bool:
        """Evict a session for one with `size` partitions; return whether that was possible (Kafka's `tryEvict`)."""
        oldest = min(self._sessions.values(), key=lambda session: session.used, default=None)
        if oldest is not None and now - oldest.used > self.eviction:
            del self._sessions[oldest.id]
            return True
        established = [one for one in self._sessions.values() if now - one.created > self.eviction]
        smallest = min(established, key=lambda session: len(session.partitions), default=None)
        if smallest is None or len(smallest.partitions) >= size:
            return False
        del self._sessions[smallest.id]
        return True


def _key(
    topic: m.FetchRequest.FetchTopic | m.FetchRequest.ForgottenTopic, partition: int, *, by_id: bool
) -> FetchKey:
    return _TopicIdKey((topic.topic_id, partition)) if by_id else (topic.topic, partition)
