"""Round-robin among the partitions that have something to hand out. Pure state without any waiting."""

from __future__ import annotations

from collections import deque

from asyncgroup.consumer.partition_consumer import PartitionConsumer

__all__ = ["ReadyQueue"]


class ReadyQueue:
    """Partitions in line, each at most once; `next_ready` gives the one whose turn it is and sends it to the end.

    Those without anything to hand out leave the line, so that a thousand idle partitions cost a busy one nothing: they
    have to be put in line again when records arrive.
    """

    def __init__(self) -> None:
        self._line: deque[PartitionConsumer] = deque()

    def __repr__(self) -> str:
        return f"<ReadyQueue: {', '.join(str(consumer.tp) for consumer in self._line) or 'empty'}>"

    def __len__(self) -> int:
        return len(self._line)

    def add(self, consumer: PartitionConsumer) -> bool:
        """Put a partition at the end of the line; False if it stands there already."""
        if consumer.is_queued:
            return False
        consumer.is_queued = True
        self._line.append(consumer)
        return True

    def remove(self, consumer: PartitionConsumer) -> None:
        """Take a partition out of the line."""
        if consumer.is_queued:
            consumer.is_queued = False
            self._line.remove(consumer)

    def next_ready(self) -> PartitionConsumer | None:
        """The next partition that has a record to hand out or an error to raise; None if there is none."""
        line = self._line
        while line:
            consumer = line.popleft()
            if consumer.is_ready:
                line.append(consumer)
                return consumer
            consumer.is_queued = False
        return None
