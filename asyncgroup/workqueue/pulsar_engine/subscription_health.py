"""SubscriptionHealth: what is wrong with a queue on a subscription, as problems of its partitions.

It reads what the consumers know when it is asked. Only the silence of a broker is seen by comparing with the time before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from asyncgroup.error_types import error_type
from asyncgroup.group.health.health import ErrorSeen, Health
from asyncgroup.group.health.problems import MemberProblem, ProblemKind
from asyncgroup.model import TopicPartition
from asyncgroup.pulsar.attach_history import KEPT_LOSSES
from asyncgroup.pulsar.consumer.config import SubscriptionType
from asyncgroup.workqueue.pulsar_engine.delivery_counts import MOST_UNACKED
from asyncgroup.workqueue.pulsar_engine.queue_partition import QueuePartition

__all__ = ["SubscriptionHealth"]

LOOP_SECONDS: Final = 60.0
"""Within this time so many losses of the broker are a problem, as two brokers that give a topic to each other."""

SILENT_SECONDS: Final = 10.0
"""After this time without a message the limit of unacknowledged messages is the likely reason."""

NEARLY: Final = 0.9
"""This part of the limit counts as the limit: messages are acknowledged while it is looked at."""

NO_RESULT: Final = "the first attempt has no result yet"

MOST_ERRORS: Final = 5
"""Kinds of errors that a health has."""


class _Seen(NamedTuple):
    text: str
    times: int
    last_at: float


class SubscriptionHealth:
    """The health of one queue."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._opened_at: float | None = None
        self._silences: dict[QueuePartition, _Silence] = {}
        self._errors: dict[str, _Seen] = {}

    def __repr__(self) -> str:
        return f"<SubscriptionHealth of {self._name!r}: {len(self._errors)} kinds of errors>"

    def opened(self) -> None:
        """The queue begins to look for its brokers."""
        self._opened_at = asyncio.get_running_loop().time()

    def note(self, error: Exception) -> None:
        """Keep an error that is tried again."""
        kind = error_type(error)
        before = self._errors.pop(kind, None)  # the newest kind is the last one
        times = 1 if before is None else before.times + 1
        self._errors[kind] = _Seen(str(error), times, asyncio.get_running_loop().time())

    def health(
        self,
        readers: Iterable[QueuePartition],
        refused: Mapping[TopicPartition, Exception],
        problems: Sequence[str],
        *,
        is_open: bool,
        has_no_topics: bool = False,
    ) -> Health:
        """Return the health now, with the partitions that their brokers have refused, and the problems of the queue itself.

        `has_no_topics`: no topic matches its pattern, which is no problem.
        """
        now = asyncio.get_running_loop().time()
        parts = sorted(readers, key=lambda reader: reader.work.tp)
        is_apart = not all(reader.consumer.is_attached for reader in parts)
        found: tuple[str, ...] = (*problems, *self._problems(parts, now), *_refusals(refused))
        is_connecting = is_apart or not (parts or has_no_topics)
        closed = None if is_open else "the queue is closed"
        return Health(
            group_id=self._name,
            state="closed" if not is_open else "connecting" if is_connecting else "stable",
            state_age=now - (now if self._opened_at is None else self._opened_at),
            member_id="",
            generation_id=-1,
            group_protocol="pulsar",
            last_heartbeat=None,
            last_fetch=None,
            claims=(),
            waits_for=None,
            problems=found if closed is None else (*found, closed),
            errors=tuple(
                ErrorSeen(seen.text, seen.times, now - seen.last_at)
                for seen in list(reversed(self._errors.values()))[:MOST_ERRORS]
            ),
            not_ready=closed or (None if has_no_topics else _not_ready(parts, now)),
        )

    # --- problems -----------------------------------------------------------------------------------------------------------

    def _problems(self, parts: Sequence[QueuePartition], now: float) -> Iterator[MemberProblem]:
        yield from _without_broker(parts, now)
        yield from _lose_broker(parts, now)
        yield from _acks_fail(parts, now)
        silences, self._silences = self._silences, {}
        for reader in parts:
            silence = self._silences[reader] = silences.get(reader) or _Silence()
            seconds = silence.observe(reader, now)
            if seconds > SILENT_SECONDS:
                yield MemberProblem(
                    ProblemKind.UNACKED, seconds, names=[_name(reader)], text=f"{reader.unacked:,}"
                )


class _Silence:
    """Whether a broker pushes nothing to a partition because of its limit of unacknowledged messages.

    The broker stops at the limit, and goes on when half of the messages are acknowledged (Pulsar's `Consumer`,
    `addAndGetUnAckedMsgs` and `updateBlockedConsumerOnUnackedMsgs`).
    """

    def __init__(self) -> None:
        self._received: object = None
        self._since = 0.0  # loop time of the first look that saw this
        self._is_stopped = False

    def observe(self, reader: QueuePartition, now: float) -> float:
        """Return for how long nothing has arrived since the limit was reached; 0 for no such silence."""
        permits, unacked = reader.consumer.permits, reader.unacked
        received = (reader.consumer.outcomes.attachment, permits.granted - permits.open)
        if received != self._received:
            self._received, self._since = received, now
            self._is_stopped = False
        self._is_stopped = unacked >= MOST_UNACKED * NEARLY or (
            self._is_stopped and unacked > MOST_UNACKED // 2
        )
        is_asked = permits.open > 0 and reader.consumer.kind in (
            SubscriptionType.SHARED,
            SubscriptionType.KEY_SHARED,
        )
        return now - self._since if self._is_stopped and is_asked else 0.0


def _not_ready(parts: Sequence[QueuePartition], now: float) -> str | None:
    """Return why the queue takes no part in its subscription: no partition has a broker."""
    if any(reader.consumer.is_attached for reader in parts):
        return None
    histories = [reader.consumer.history for reader in parts]
    # the partition that has lost its broker last knows best what is wrong now
    since, error = max(
        (
            (now if history.detached_since is None else history.detached_since, history.error)
            for history in histories
        ),
        key=lambda each: each[0],
        default=(now, None),
    )
    text = NO_RESULT if error is None else str(error)
    return MemberProblem(ProblemKind.NOT_CONNECTED, now - since, text=text)


def _refusals(refused: Mapping[TopicPartition, Exception]) -> Iterator[MemberProblem]:
    for tp, error in sorted(refused.items()):
        yield MemberProblem(ProblemKind.REFUSED, names=[_name_of(tp)], text=str(error))


def _name(reader: QueuePartition) -> str:
    return _name_of(reader.work.tp)


def _name_of(tp: TopicPartition) -> str:
    return tp.topic if tp.partition < 0 else f"{tp.topic}-{tp.partition}"


def _without_broker(parts: Sequence[QueuePartition], now: float) -> Iterator[MemberProblem]:
    """Yield one problem of all partitions without a broker; the reason is that of the longest."""
    apart = [
        (since, reader) for reader in parts if (since := reader.consumer.history.detached_since) is not None
    ]
    if apart:
        since, longest = min(apart, key=lambda each: each[0])
        error = longest.consumer.history.error
        text = NO_RESULT if error is None else str(error)
        names = [_name(reader) for _, reader in apart]
        yield MemberProblem(ProblemKind.NO_BROKER, now - since, names=names, text=text)


def _lose_broker(parts: Sequence[QueuePartition], now: float) -> Iterator[MemberProblem]:
    for reader in parts:
        history = reader.consumer.history
        losses = history.losses
        if len(losses) == KEPT_LOSSES and now - losses[0] <= LOOP_SECONDS:
            seconds, text = now - losses[0], f"{KEPT_LOSSES} times: {history.last_loss}"
            yield MemberProblem(ProblemKind.LOSES_BROKER, seconds, names=[_name(reader)], text=text)


def _acks_fail(parts: Sequence[QueuePartition], now: float) -> Iterator[MemberProblem]:
    """Yield one problem of all partitions whose acknowledgements fail; the reason is that of the longest."""
    failing = [(failure, reader) for reader in parts if (failure := reader.consumer.ack_failure) is not None]
    if failing:
        failure, _ = min(failing, key=lambda each: each[0].since)
        names = [_name(reader) for _, reader in failing]
        yield MemberProblem(ProblemKind.ACKS, now - failure.since, names=names, text=str(failure.error))
