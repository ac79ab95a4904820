"""Round-robin queue of the partitions that have records to hand out. Pure state without any waiting."""

from __future__ import annotations

from collections import deque

from asyncgroup.consumer.partition_consumer import PartitionConsumer

__all__ = ["ReadyQueue"]


class ReadyQueue:
    """Each partition is queued at most once; `next_ready` returns the first ready one and moves it to the end.

    Partitions that are not ready are dropped from the queue, so that a thousand idle partitions cost a busy one nothing;
    `add` has to be called for them again when records arrive.
    """

    def __init__(self) -> None:
        self._queue: deque[PartitionConsumer] = deque()

    def __repr__(self) -> str:
        return f"<ReadyQueue: {', '.join(str(consumer.tp) for consumer in self._queue) or 'empty'}>"

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, consumer: PartitionConsumer) -> bool:
        """Append a partition to the queue; return False if it is queued already."""
        if consumer.is_queued:
            return False
        consumer.is_queued = True
        self._queue.append(consumer)
        return True

    def remove(self, consumer: PartitionConsumer) -> None:
        """Remove a partition from the queue, if it is queued."""
        if consumer.is_queued:
            consumer.is_queued = False
            self._queue.remove(consumer)

    def next_ready(self) -> PartitionConsumer | None:
        """Return the next partition that has a record to hand out or an error to raise; None if there is none."""
        queue = self._queue
        while queue:
            consumer = queue.popleft()
            if consumer.is_ready:
                queue.append(consumer)
                return consumer
            consumer.is_queued = False
        return None
