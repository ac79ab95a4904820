"""Round-robin queue of the partitions that have records to hand out. Pure state without any waiting."""

from __future__ import annotations

from collections import deque

from asyncgroup.consumer.partition import TopicPartitionState

__all__ = ["ReadyQueue"]


class ReadyQueue:
    """Each partition is queued at most once; `next_ready` returns the first ready one and moves it to the end.

    Partitions that are not ready are dropped from the queue, so that a thousand idle partitions cost a busy one nothing;
    `add` has to be called for them again when records arrive.
    """

    def __init__(self) -> None:
        self._queue: deque[TopicPartitionState] = deque()

    def __repr__(self) -> str:
        return f"<ReadyQueue: {', '.join(str(partition.tp) for partition in self._queue) or 'empty'}>"

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, partition: TopicPartitionState) -> bool:
        """Append a partition to the queue; return False if it is queued already."""
        if partition.is_queued:
            return False
        partition.is_queued = True
        self._queue.append(partition)
        return True

    def remove(self, partition: TopicPartitionState) -> None:
        """Remove a partition from the queue, if it is queued."""
        if partition.is_queued:
            partition.is_queued = False
            self._queue.remove(partition)

    def next_ready(self) -> TopicPartitionState | None:
        """Return the next partition that has a record to hand out or an error to raise; None if there is none."""
        queue = self._queue
        while queue:
            partition = queue.popleft()
            if partition.is_ready:
                queue.append(partition)
                return partition
            partition.is_queued = False
        return None
