"""The client's half of an incremental fetch session (KIP-227; `FetchSessionHandler.java` in Kafka).

A broker remembers what was asked: a request names only what changed since the last one, a response only what is new.
An idle consumer of two hundred partitions so sends and receives a few dozen bytes instead of kilobytes. Pure state.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple
from uuid import UUID

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
    "sessionless_request",
]

SESSION_VERSION: Final = 7
"""The Fetch version from which there are sessions (KIP-227)."""

TOPIC_ID_VERSION: Final = 13
"""The Fetch version from which topics go by id (KIP-516)."""

INITIAL_EPOCH: Final = 0
"""Asks for a new session, and ends the one that is named."""

FINAL_EPOCH: Final = -1
"""Asks for no session, and ends the one that is named."""

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
"""Codes of a whole response that a new session heals: the old one was evicted, or the broker was restarted."""


class PartitionData(NamedTuple):
    """What a fetch asks of a partition; `fetched_epoch` is the leader epoch of the record before `offset`, or -1."""

    offset: int
    leader_epoch: int
    max_bytes: int
    fetched_epoch: int = -1
    topic_id: UUID = m.NO_UUID


class SessionRequest(NamedTuple):
    """What to send: the partitions, in order, and those that the broker should forget, with their topics' ids."""

    session_id: int
    epoch: int
    wanted: Mapping[TopicPartition, PartitionData]
    forgotten: list[tuple[TopicPartition, UUID]]


def sessionless_request(wanted: Mapping[TopicPartition, PartitionData]) -> SessionRequest:
    """A full fetch that makes no session and ends none."""
    return SessionRequest(0, FINAL_EPOCH, wanted, [])


class FetchSession:
    """One session with one broker, over requests that are sent one after another.

    `next_request` says what to send for what is wanted now, and takes for granted that the broker will know it; then either
    `handle_response` or `invalidate` follows. After anything unexpected the next request asks for a new session, and ends the old
    one where the broker may still have it.
    """

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.session_id = 0
        self.epoch = INITIAL_EPOCH
        self.session_partitions: dict[TopicPartition, PartitionData] = {}
        """What the broker has been told, at the latest by the request under way."""
        self._by_id = False
        self._is_used = False
        self._refusals = 0

    def __repr__(self) -> str:
        return (
            f"<FetchSession node {self.node_id}: id {self.session_id}, epoch {self.epoch}, "
            f"{len(self.session_partitions)} partitions>"
        )

    def next_request(self, wanted: Mapping[TopicPartition, PartitionData], version: int) -> SessionRequest:
        """What to send in a version so that the broker reads just these partitions."""
        by_id = version >= TOPIC_ID_VERSION
        if by_id is not self._by_id:
            self.invalidate()  # a session goes by names or by ids; the broker would answer FETCH_SESSION_TOPIC_ID_ERROR
            self._by_id = by_id
        self._is_used = version >= SESSION_VERSION
        if not self._is_used:
            return sessionless_request(wanted)
        known, self.session_partitions = self.session_partitions, dict(wanted)
        if self.epoch == INITIAL_EPOCH:
            return SessionRequest(self.session_id, INITIAL_EPOCH, wanted, [])
        changed = {tp: ask for tp, ask in wanted.items() if known.get(tp) != ask}
        forgotten = [(tp, ask.topic_id) for tp, ask in known.items() if self._is_forgotten(tp, ask)]
        return SessionRequest(self.session_id, self.epoch, changed, forgotten)

    def _is_forgotten(self, tp: TopicPartition, before: PartitionData) -> bool:
        """Whether the broker must drop an entry: not wanted any more, or of a topic that was made anew meanwhile."""
        now = self.session_partitions.get(tp)
        return now is None or (self._by_id and now.topic_id != before.topic_id)

    def handle_response(self, response: m.FetchResponse, partitions: Collection[TopicPartition]) -> None:
        """Take note of a response without a top-level error, and of the partitions that it names.

        Raises ProtocolError for one that does not fit what was asked; nothing of it must be used then.
        """
        self._refusals = 0
        if not self._is_used:
            return
        if self.epoch == INITIAL_EPOCH:
            self._handle_full_response(response, partitions)
            return
        if strange := [tp for tp in partitions if tp not in self.session_partitions]:
            self.invalidate()
            raise self._protocol_error(f"{strange[0]} is not in the session")
        self._continue(response.session_id, self.epoch)

    def _handle_full_response(
        self, response: m.FetchResponse, partitions: Collection[TopicPartition]
    ) -> None:
        found = set(partitions)
        if not found and response.throttle_time_ms > 0:  # the broker did not even look (KIP-219)
            self._restart(0)
        elif found != self.session_partitions.keys():
            error = self._protocol_error(
                f"{len(found)} partitions where {len(self.session_partitions)} were asked for"
            )
            self._restart(response.session_id)
            raise error
        else:
            self._continue(response.session_id, INITIAL_EPOCH)

    def _continue(self, session_id: int, epoch: int) -> None:
        """Id 0 says that the broker keeps no session: its cache is full, or it has just let go of ours."""
        if session_id == 0:
            self._restart(0)
        else:
            self.session_id = session_id
            self.epoch = 1 if epoch == _LAST_EPOCH else epoch + 1

    def handle_error(self, code: int) -> bool:
        """Take note of a top-level error; whether the same should be asked again at once, in a new session.

        Twice in a row it should not: a broker that refuses each new session would be asked without a pause.
        """
        self._restart(0 if code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND else self.session_id)
        self._refusals += 1
        return code in SESSION_ERRORS and self._refusals == 1

    def invalidate(self) -> None:
        """Nobody knows whether the last request was carried out: begin anew, and end the old session."""
        self._restart(self.session_id)

    def _restart(self, session_id: int) -> None:
        self.session_id, self.epoch = session_id, INITIAL_EPOCH
        self.session_partitions = {}

    def _protocol_error(self, what: str) -> ProtocolError:
        return ProtocolError(f"fetch from node {self.node_id}: {what} (session {self.session_id})")
