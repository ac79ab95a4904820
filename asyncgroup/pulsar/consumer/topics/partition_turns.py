"""PartitionTurns: the partitions of a consumer that have messages, each in its turn."""

from __future__ import annotations

from collections import deque

from asyncgroup.pulsar.consumer.pulsar_message import PulsarMessage
from asyncgroup.pulsar.consumer.topics.consumer_partitions import ConsumedPartition

__all__ = ["PartitionTurns"]


class PartitionTurns:
    """Takes messages of the partitions in turn, so that one with many delays no other."""

    def __init__(self) -> None:
        self.ready: deque[ConsumedPartition] = deque()
        """Those with messages (`is_ready`), in the order of their turns."""

    def __repr__(self) -> str:
        return f"<PartitionTurns of {len(self.ready)} partitions>"

    def take_one(self) -> PulsarMessage | None:
        """Remove and return a message of the partition whose turn it is; None if there is none."""
        ready = self.ready
        while ready:
            part = ready[0]
            message = part.consumer.take_one()
            if message is not None:
                if len(ready) > 1:
                    ready.rotate(-1)
                return message
            ready.popleft()  # only now: to look whether that was its last message takes as long as to take one
            part.is_ready = False
        return None

    def take(self, most: float, most_bytes: float) -> list[PulsarMessage]:
        """Remove and return messages, of each partition in turn."""
        ready = self.ready
        found: list[PulsarMessage] = []
        size = 0
        while ready and len(found) < most and (not found or size < most_bytes):
            part = ready[0]
            left = min(most - len(found), part.consumer.queued)
            taken = part.consumer.take(int(left), most_bytes - size if found else most_bytes)
            found += taken
            if len(found) < most:
                size += sum(message.size for message in taken)
            if part.consumer.queued:
                ready.rotate(-1)
                if not taken:  # its next message is larger than the rest
                    break
            else:
                ready.popleft()
                part.is_ready = False
        return found
