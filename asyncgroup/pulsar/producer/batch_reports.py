"""BatchReports: the events for hooks of each batch that is stored or has failed, as those of a producer of Kafka."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from asyncgroup.hooks import Hooks
from asyncgroup.model import BatchResult
from asyncgroup.pulsar.producer.outgoing import OutgoingMessage
from asyncgroup.pulsar.producer.pending_messages import PendingSend
from asyncgroup.pulsar.wire.topic_name import TopicName

__all__ = ["BatchReports", "batch_reports"]

_NO_OFFSET = -1


class BatchReports:
    """The events of one partition; `now` returns the loop time."""

    def __init__(self, hooks: Hooks, topic: TopicName, now: Callable[[], float]) -> None:
        self._hooks = hooks
        self._tp = str(topic.whole), topic.partition
        self._now = now

    def __repr__(self) -> str:
        return f"<BatchReports of {self._tp}>"

    def done(self, send: PendingSend, error: Exception | None) -> None:
        """A frame has its receipt, or has failed."""
        wire_size = send.wire_size if send.attempts else 0
        self._report(send.count, send.size, wire_size, send.created_at, send.attempts, error)

    def refused(self, messages: Sequence[OutgoingMessage], since: float, error: Exception) -> None:
        """Messages of a batch that has no frame have failed."""
        self._report(len(messages), sum(message.size for message in messages), 0, since, 0, error)

    def _report(
        self, count: int, size: int, wire_size: int, since: float, attempts: int, error: Exception | None
    ) -> None:
        hooks, tp = self._hooks, self._tp
        hooks.emit("on_produce", *tp, count, error)
        if error is None:
            hooks.emit("on_delivered", *tp, _NO_OFFSET, count)
        latency = self._now() - since
        hooks.emit(
            "on_batch_done", BatchResult(*tp, count, size, wire_size, latency, attempts, _NO_OFFSET, error)
        )


def batch_reports(hooks: Hooks, topic: TopicName, now: Callable[[], float]) -> BatchReports | None:
    """Return what a producer calls for each batch; None without listeners."""
    listening = hooks.with_listener("on_produce", "on_delivered", "on_batch_done")
    return None if listening is None else BatchReports(listening, topic, now)
