"""Incremental fetch sessions (KIP-227; Kafka's `FetchSession.scala`).

A client sends its partitions once and afterwards only what changes; the broker answers only with partitions
that have news. Pure: the clock and the randomness are handed in.

A full cache makes room for a new session at the cost of one that was idle for `eviction` seconds, or of a smaller one
that is at least as old.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

from asyncgroup.broker.producer_state import AbortedTransaction
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m

__all__ = ["FINAL_EPOCH", "INITIAL_EPOCH", "FetchContext", "FetchKey", "FetchSessions", "Fetched"]

INITIAL_EPOCH: Final = 0
"""Asks for a new session."""

FINAL_EPOCH: Final = -1
"""Asks for no session, and ends the one that is named."""

_LAST_EPOCH: Final = 2**31 - 1

FetchKey = tuple[str | UUID, int]
"""A partition as the request names it: by topic name up to version 12, by topic id from 13 on."""


class _ById(tuple[UUID, int]):
    """A key with a topic id. Python's hash of an id is its number's, which knows no secret: a client could name thousands
    of ids of one hash, and each would be compared with all those before it.
    """

    __slots__ = ()

    def __hash__(self) -> int:
        return hash((self[0].bytes, self[1]))

    __eq__ = tuple.__eq__


class Fetched(NamedTuple):
    """What there is to say about a partition; `diverging` is (epoch, end offset), `leader` (id, epoch)
    (KIP-951). `aborted` are the aborted transactions that touch the records (KIP-98), None where nobody asked for them or
    nothing was read; `preferred` is the replica to ask instead (KIP-392).
    """

    error: ErrorCode = ErrorCode.NONE
    high_watermark: int = -1
    log_start_offset: int = -1
    records: bytes | memoryview = b""
    diverging: tuple[int, int] | None = None
    leader: tuple[int, int] | None = None
    last_stable_offset: int = -1
    aborted: Sequence[AbortedTransaction] | None = None
    preferred: int = -1


class _Cached:
    """A partition of a session: what was asked, and what was last answered."""

    __slots__ = ("high_watermark", "log_start_offset", "wanted")

    def __init__(self, wanted: m.FetchRequest.FetchPartition) -> None:
        self.wanted = wanted
        self.high_watermark = -1
        self.log_start_offset = -1

    def has_news(self, fetched: Fetched) -> bool:
        news = (
            len(fetched.records) > 0
            or self.high_watermark != fetched.high_watermark
            or self.log_start_offset != fetched.log_start_offset
            or fetched.error != 0
            or fetched.diverging is not None
            or fetched.preferred >= 0
        )
        self.keep(fetched)
        return news

    def keep(self, fetched: Fetched) -> None:
        # An error is repeated until it is gone, and the good answer after it is news.
        self.high_watermark = -1 if fetched.error else fetched.high_watermark
        self.log_start_offset = fetched.log_start_offset


@dataclass(slots=True)
class _Session:
    id: int
    uses_topic_ids: bool
    epoch: int
    created: float
    used: float
    names: dict[UUID, str]
    partitions: dict[FetchKey, _Cached] = field(default_factory=dict)


def next_epoch(epoch: int) -> int:
    """The epoch of the request after one with `epoch`."""
    if epoch < 0:
        return FINAL_EPOCH
    return 1 if epoch == _LAST_EPOCH else epoch + 1


Wanted = list[tuple[FetchKey, m.FetchRequest.FetchPartition]]
"""What to read, in the order in which the response is filled."""


class FetchContext:
    """One Fetch request in the light of its session: what to read, and which of it to send back.

    `names` are those that the session's topics had when they were first read by id; they tell what became of an id.
    """

    def __init__(
        self,
        sessions: FetchSessions,
        wanted: Wanted,
        *,
        session: _Session | None = None,
        create: bool = False,
        uses_topic_ids: bool = False,
        error: ErrorCode = ErrorCode.NONE,
    ) -> None:
        self.wanted = wanted
        self.error = error
        self._sessions = sessions
        self._session = session
        self._epoch = session.epoch if session else 0
        self.names: dict[UUID, str] = session.names if session else {}
        self._create = create
        self._uses_topic_ids = uses_topic_ids

    def answer(
        self, fetched: list[tuple[FetchKey, Fetched]]
    ) -> tuple[ErrorCode, int, list[tuple[FetchKey, Fetched]]]:
        """The error and the session id to send, and those of the partitions to send with them."""
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
        news = []
        for key, result in fetched:
            cached = session.partitions.get(key)
            if cached is None or not cached.has_news(result):
                continue
            news.append((key, result))
            if len(result.records) > 0:
                # To the end of the line, so that every partition gets its turn when a response is full.
                session.partitions[key] = session.partitions.pop(key)
        return ErrorCode.NONE, session.id, news


class FetchSessions:
    """The sessions of one node."""

    def __init__(
        self,
        *,
        now: Callable[[], float],
        rng: random.Random,
        slots: int = 1000,
        eviction: float = 120.0,
    ) -> None:
        self._now = now
        self._rng = rng
        self._slots = slots
        self._eviction = eviction
        self._sessions: dict[int, _Session] = {}

    def __repr__(self) -> str:
        return f"<FetchSessions {len(self)} of {self._slots}>"

    def __len__(self) -> int:
        return len(self._sessions)

    def keys(self, session_id: int) -> Iterable[FetchKey]:
        """The partitions of a session; none for an unknown one."""
        session = self._sessions.get(session_id)
        return () if session is None else session.partitions.keys()

    def context(self, request: m.FetchRequest, version: int) -> FetchContext:
        """Look up, start or end the session that `request` names."""
        by_id = version >= 13
        wanted = {
            _key(topic, partition.partition, by_id=by_id): partition
            for topic in request.topics
            for partition in topic.partitions
        }
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._sessions.pop(request.session_id, None)
            create = request.session_epoch == INITIAL_EPOCH
            return FetchContext(self, list(wanted.items()), create=create, uses_topic_ids=by_id)
        session = self._sessions.get(request.session_id)
        if session is None:
            return FetchContext(self, [], error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.session_epoch:
            return FetchContext(self, [], error=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_topic_ids != by_id:
            return FetchContext(self, [], error=ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        return self._continue(session, wanted, request, by_id=by_id)

    def _continue(
        self,
        session: _Session,
        wanted: dict[FetchKey, m.FetchRequest.FetchPartition],
        request: m.FetchRequest,
        *,
        by_id: bool,
    ) -> FetchContext:
        for key, partition in wanted.items():
            cached = session.partitions.get(key)
            if cached is None:
                session.partitions[key] = _Cached(partition)
            else:
                cached.wanted = partition
        for topic in request.forgotten_topics_data:
            for number in topic.partitions:
                session.partitions.pop(_key(topic, number, by_id=by_id), None)
        if not session.partitions:
            del self._sessions[session.id]
            return FetchContext(self, list(wanted.items()))
        session.used = self._now()
        session.epoch = next_epoch(session.epoch)
        everything = [(key, cached.wanted) for key, cached in session.partitions.items()]
        return FetchContext(self, everything, session=session)

    def create(
        self,
        wanted: Wanted,
        fetched: list[tuple[FetchKey, Fetched]],
        uses_topic_ids: bool,
        names: dict[UUID, str] | None = None,
    ) -> int:
        """A new session with these partitions and what was answered for them: its id, 0 if the cache is full."""
        now = self._now()
        if len(self._sessions) >= self._slots and not self._evict(now, len(wanted)):
            return 0
        session_id = 0
        while session_id == 0 or session_id in self._sessions:
            session_id = self._rng.randrange(1, 2**31)
        session = _Session(session_id, uses_topic_ids, next_epoch(INITIAL_EPOCH), now, now, names or {})
        answered = dict(fetched)
        for key, partition in wanted:
            cached = session.partitions[key] = _Cached(partition)
            cached.keep(answered[key])
        self._sessions[session_id] = session
        return session_id

    def _evict(self, now: float, size: int) -> bool:
        """Make room for a session with `size` partitions, if that is worth it (`FetchSessionCache.tryEvict`)."""
        oldest = min(self._sessions.values(), key=lambda session: session.used, default=None)
        if oldest is not None and now - oldest.used > self._eviction:
            del self._sessions[oldest.id]
            return True
        settled = [one for one in self._sessions.values() if now - one.created > self._eviction]
        smallest = min(settled, key=lambda session: len(session.partitions), default=None)
        if smallest is None or len(smallest.partitions) >= size:
            return False
        del self._sessions[smallest.id]
        return True


def _key(
    topic: m.FetchRequest.FetchTopic | m.FetchRequest.ForgottenTopic, partition: int, *, by_id: bool
) -> FetchKey:
    return _ById((topic.topic_id, partition)) if by_id else (topic.topic, partition)
