"""Problems of a group member, or of a queue on a subscription: what is wrong as data, and one table of the sentences that say so."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final, Self

__all__ = ["MemberProblem", "ProblemKind", "WaitKind"]

MAX_NAMES: Final = 3
"""How many partitions or calls a sentence names."""


class ProblemKind(Enum):
    """What is wrong. The values are the sentences, by the fields of MemberProblem."""

    HANDLER = "the handler failed: {text}"
    HOOK = "a hook took too long: {text}"
    LOST = "the membership was lost: {text}"
    JOIN = "joining fails: {text}"
    COMMIT = "commits fail: {text}"
    HEARTBEAT = "heartbeats fail, the last successful one was {seconds:.1f} s ago: {text}"
    HEARTBEAT_UNANSWERED = "no response to heartbeats for {seconds:.1f} s"
    START = "{names} cannot start for {seconds:.1f} s: {text}"
    FETCH = "{names} cannot be fetched for {seconds:.1f} s: {text}"
    FETCH_UNANSWERED = "no response to a fetch from {names} for {seconds:.1f} s"
    TOPIC_MISSING = "topic {names} does not exist, missing for {seconds:.1f} s; it is read once it exists"
    TOPIC_UNUSABLE = "topic {names} cannot be used for {seconds:.1f} s: {text}"
    STATE = "{text} for {seconds:.1f} s"
    CALL_NOT_CANCELLED = "{names} still running {seconds:.1f} s after cancellation"
    CALL_SLOW = "{names} running for {seconds:.1f} s: claims wait for it"
    CLOSED = "the group is closed"
    NOT_CONSUMING = "nothing consumes: neither run() nor consume() is running"
    LEAVING = "nothing consumes: the member is leaving the group"
    NOT_JOINED = "the member has not joined its group"
    SILENT_BROKERS = "no broker has answered for {seconds:.1f} s"
    # of a queue on a subscription of Pulsar
    NO_BROKER = "{names} is not connected to its broker for {seconds:.1f} s: {text}"
    REFUSED = "{names} is refused by its broker: {text}"
    NOT_CONNECTED = "no partition is connected to its broker for {seconds:.1f} s: {text}"
    LOSES_BROKER = "{names} has lost its broker again and again, within {seconds:.1f} s {text}"
    ACKS = "acknowledgements of {names} fail for {seconds:.1f} s, they are sent again: {text}"
    UNACKED = (
        "the broker has pushed no message of {names} for {seconds:.1f} s: {text} messages here are not acknowledged, "
        "about its limit for a consumer (maxUnackedMessagesPerConsumer)"
    )


class WaitKind(Enum):
    """What a member waits for. The values are the texts of `Health.waits_for`, by the same fields."""

    TOPICS = "the metadata of its topics"
    COORDINATOR = "the coordinator of group {names}"
    JOIN = "the group to complete the join"
    SYNC = "the group leader to send the assignment"
    COMMIT = "the response to its last commit"
    BACKOFF = "the backoff before it joins again"
    LEAVE = "the response to its request to leave"
    CALLS = "{names} to end"
    STARTS = "its start offsets"
    PENDING_START = "the start offset of {names}"
    BROKERS = "brokers to respond without errors; it retries, and the session ends after {seconds:g} s without a heartbeat response"
    TOPIC_MISSING = "topic {names} to exist"
    TOPIC_UNUSABLE = "topic {names} to be usable"
    PARTITION = "a partition: other members own all of them"
    PARTITION_OF_PATTERN = "a partition: other members own all of them, or the pattern matches no topic"
    TOPIC_OF_PATTERN = "a topic that its pattern matches"

    def text(self, names: Sequence[str] = (), seconds: float = 0.0) -> str:
        """Return the text."""
        return self.value.format(names=_listed(names), seconds=seconds)


class MemberProblem(str):
    """A problem: its sentence, with the data that it was made of."""

    __slots__ = ("kind", "names", "seconds", "text")

    kind: ProblemKind
    seconds: float
    """For how long, or since when; 0.0 where the sentence says neither."""
    names: tuple[str, ...]
    """The partitions, topics, nodes or calls, all of which are not in the sentence if there are many."""
    text: str
    """The text of an error, or a state."""

    def __new__(
        cls, kind: ProblemKind, seconds: float = 0.0, *, names: Sequence[str] = (), text: str = ""
    ) -> Self:
        """Make the sentence."""
        self = super().__new__(cls, kind.value.format(seconds=seconds, names=_listed(names), text=text))
        self.kind, self.seconds, self.names, self.text = kind, seconds, tuple(names), text
        return self

    def __getnewargs_ex__(self) -> tuple[tuple[object, ...], dict[str, object]]:
        """Return how a copy is made."""
        return (self.kind, self.seconds), {"names": self.names, "text": self.text}


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:MAX_NAMES])
    return shown if len(names) <= MAX_NAMES else f"{shown} and {len(names) - MAX_NAMES} others"
