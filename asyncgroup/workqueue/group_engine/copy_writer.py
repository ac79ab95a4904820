"""CopyWriter: writes copies of records, one by one (DirectCopies) or in transactions (`copy_transactions`)."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Final, Protocol

from asyncgroup.config import ConsumerConfig, ProducerConfig
from asyncgroup.errors import AsyncGroupError, DeliveryFailedError
from asyncgroup.group.end_limits import reserve_for
from asyncgroup.model import RecordMetadata, TopicPartition
from asyncgroup.producer import Producer
from asyncgroup.workqueue.group_engine.copies import OutgoingCopy
from asyncgroup.workqueue.policies import Backoff

__all__ = ["RETRIES", "CopyWriter", "DirectCopies", "OnWritten", "transactions_config"]

RETRIES: Final = Backoff(initial=0.1, factor=2.0, maximum=30.0)
"""The delay before a copy is tried again."""

OnWritten = Callable[[RecordMetadata], object]
"""Acknowledges the original."""


class CopyWriter(Protocol):
    """Writes copies to retry and dead letter topics."""

    is_transactional: bool
    """Whether the acknowledgement of a record is committed when `write` returns."""

    async def open(self) -> None:
        """Begin; raises what entering a producer raises."""
        ...

    async def aclose(self) -> None:
        """End; copies that are not written raise ClosedError. Safe to call twice, and before `open`."""
        ...

    async def write(
        self, tp: TopicPartition, offset: int, copy: OutgoingCopy, on_written: OnWritten, *, alone: bool
    ) -> RecordMetadata:
        """Write the copy of a record, and return when the broker has acknowledged it.

        `on_written` is called before that if the record has to be acknowledged at the same moment. `alone`: an earlier
        attempt has failed in a way that this copy may have caused. Raises what the producer raises. The outcome of a
        cancelled call is unknown.
        """
        ...

    def abandon(self, tp: TopicPartition, offset: int, *, is_over: bool) -> None:
        """Call no `on_written` for the records of a partition from `offset` on; `is_over`: its claim ends."""
        ...

    def note_retry(self, topic: str) -> None:
        """The producer repeats a request for records of this topic; an empty topic: one of a transaction."""
        ...

    def passes(self, error: Exception) -> bool:
        """Whether to retry the copy soon after this error of `write`; otherwise after a long delay."""
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
