"""GroupCopyWriter: writes copies of records, one by one (DirectCopies) or in transactions (`copy_transactions`)."""

from __future__ import annotations

import contextlib
import random
from dataclasses import replace
from typing import Protocol

from asyncgroup.config import ConsumerConfig, ProducerConfig
from asyncgroup.errors import AsyncGroupError, DeliveryFailedError
from asyncgroup.group.sessions.end_limits import reserve_for
from asyncgroup.model import RecordMetadata, TopicPartition
from asyncgroup.producer import Producer
from asyncgroup.workqueue.engine import CopyWriter, OnWritten, OutgoingCopy

__all__ = ["DirectCopies", "GroupCopyWriter", "transactions_config"]


class GroupCopyWriter(CopyWriter, Protocol):
    """A CopyWriter over a producer, which the engine opens."""

    async def open(self) -> None:
        """Begin; raises what entering a producer raises."""
        ...

    def note_retry(self, topic: str) -> None:
        """The producer repeats a request for records of this topic; an empty topic: one of a transaction."""
        ...


class DirectCopies:
    """Writes each copy by itself, with an idempotent producer that it opens and closes."""

    is_transactional = False

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._is_open = False

    def __repr__(self) -> str:
        return f"<DirectCopies, {self._producer!r}>"

    async def open(self) -> None:
        """Open the producer."""
        await self._producer.__aenter__()
        self._is_open = True

    async def aclose(self) -> None:
        """Close the producer; records that are not acknowledged fail."""
        if self._is_open:
            with contextlib.suppress(DeliveryFailedError):  # copies that were given up
                await self._producer.aclose(drain=False)

    async def write(
        self,
        tp: TopicPartition,  # noqa: ARG002
        offset: int,  # noqa: ARG002
        copy: OutgoingCopy,
        on_written: OnWritten,  # noqa: ARG002
        *,
        alone: bool,  # noqa: ARG002
    ) -> RecordMetadata:
        """Send the copy."""
        topic, value, key, headers, timestamp = copy
        return await self._producer.send(topic, value, key=key, headers=headers, timestamp=timestamp)

    def abandon(self, tp: TopicPartition, offset: int, *, is_over: bool) -> None:
        """Nothing: the caller cancels its calls of `write`."""

    def note_retry(self, topic: str) -> None:
        """Nothing: each copy waits for itself only."""

    def passes(self, error: Exception) -> bool:
        """Whether the error is retriable."""
        return isinstance(error, AsyncGroupError) and error.retriable


def transactions_config(
    config: ProducerConfig, group: ConsumerConfig, group_id: str, rng: random.Random
) -> ProducerConfig:
    """Return the configuration of the producer of CopyTransactions: with a transactional id, and a `close_timeout` within that of the group.

    The id is the user's, or the group's with the `group_instance_id` or else a random part, so that it differs between members.
    """
    unique = group.group_instance_id or f"{rng.getrandbits(128):032x}"
    return replace(
        config,
        transactional_id=config.transactional_id or f"{group_id}-{unique}",
        # it waits twice: when the task is cancelled, and when the producer is closed
        close_timeout=min(config.close_timeout, reserve_for(group.close_timeout) / 2),
    )
