"""LostMessages: the messages that have failed without a caller that waits for them, for `flush` and `aclose`."""

from __future__ import annotations

from asyncgroup.errors import DeliveryFailedError
from asyncgroup.model import TopicPartition
from asyncgroup.pulsar.wire.topic_name import TopicName

__all__ = ["LostMessages"]


class LostMessages:
    """Their number and the first error of each partition, since the last `take`."""

    def __init__(self) -> None:
        self._failed: dict[TopicPartition, tuple[int, Exception]] = {}
        self._may_be_written = False

    def __repr__(self) -> str:
        return f"<LostMessages {sum(count for count, _ in self._failed.values())}>"

    def add(self, topic: TopicName, count: int, error: Exception) -> None:
        """Messages to a topic or partition have failed."""
        tp = TopicPartition(str(topic.whole), topic.partition)
        before, first = self._failed.get(tp, (0, error))
        self._failed[tp] = (before + count, first)
        self._may_be_written |= getattr(error, "may_be_written", False)

    def take(self) -> DeliveryFailedError | None:
        """Return the error for all of them, and forget them; None if there are none."""
        if not self._failed:
            return None
        failed, self._failed = self._failed, {}
        may_be_written, self._may_be_written = self._may_be_written, False
        return DeliveryFailedError(failed, may_be_written=may_be_written)
