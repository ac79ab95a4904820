"""The additional steps of a send: interceptors, hooks of each record, limits for each partition, our own sequence ids.

A producer that uses none of them has no `SendSteps`, and its records take the short way through `producer.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from asyncgroup.errors import QueueFull
from asyncgroup.hooks import Hooks
from asyncgroup.interceptor import ProduceInterceptor, ProducerRecord
from asyncgroup.memory.pending_limits import PartitionLimits, ProducerMemory
from asyncgroup.model import RecordMetadata, TopicPartition
from asyncgroup.producer.arguments import check_sequence_id, copy_headers, measure_record
from asyncgroup.producer.batches.record_end import RecordEnd
from asyncgroup.producer.interceptors import ProducerInterceptors
from asyncgroup.producer.records.chunks import ChunkWriter
from asyncgroup.producer.records.pipeline import RecordPath
from asyncgroup.producer.records.writer import RecordWriter

__all__ = ["SendSteps", "send_steps"]


class SendSteps:
    """`send`, `send_nowait` and `enqueue` of a producer that needs any of these steps.

    `hooks` is None unless they have a method for the events of each record.
    """

    def __init__(
        self,
        path: RecordPath,
        writer: RecordWriter,
        chunks: ChunkWriter,
        interceptors: ProducerInterceptors,
        hooks: Hooks | None,
        initial_sequence_id: int | None,
    ) -> None:
        self._router = path.router
        self._memory = path.memory
        self._limits = path.accumulator.partition_limits
        self._writer = writer
        self._chunks = chunks
        self._interceptors = interceptors
        self._hooks = hooks
        self._last_sequence_id = initial_sequence_id

    def __repr__(self) -> str:
        return f"<SendSteps {self._limits}, last sequence id {self._last_sequence_id}>"

    async def send(self, record: ProducerRecord) -> RecordMetadata:
        """Write a record and wait until it is acknowledged."""
        future: asyncio.Future[RecordMetadata] = asyncio.get_running_loop().create_future()
        await self._accept(record, future)
        return await future

    async def enqueue(self, record: ProducerRecord) -> bool:
        """Write a record, waiting only until it is accepted; True if it filled a batch."""
        return await self._accept(record, None)

    def send_nowait(self, record: ProducerRecord) -> asyncio.Future[RecordMetadata]:
        """Write a record without waiting; raise QueueFull if a limit is reached."""
        future: asyncio.Future[RecordMetadata] = asyncio.get_running_loop().create_future()
        end = RecordEnd(self._interceptors.on_send(record), self._interceptors, future, self._hooks)
        try:
            size = self._measure(end.record)
            if size > self._writer.max_size:
                self._chunks.write_nowait(end.record, size, end)
                self._number(end)
            else:
                tp = self._partition_of(end.record, size)
                self._reserve_nowait(tp, size)
                self._append(end, tp, size)
        except BaseException as error:
            end.refuse(error)
            raise
        return future

    async def _accept(self, record: ProducerRecord, future: asyncio.Future[RecordMetadata] | None) -> bool:
        end = RecordEnd(
            self._interceptors.on_send(record),
            self._interceptors,
            future,
            self._hooks,
            is_awaited=future is not None,
        )
        try:
            size = self._measure(end.record)
            if size > self._writer.max_size:
                await self._chunks.write(end.record, size, end)
                self._number(end)
                return True
            tp = self._partition_of(end.record, size)
            await self._reserve(end, tp, size)
            return self._append(end, tp, size)
        except BaseException as error:
            end.refuse(error)
            raise

    def _measure(self, record: ProducerRecord) -> int:
        _, value, key, headers, partition, timestamp = record
        return measure_record(value, key, headers, partition, timestamp)

    def _partition_of(self, record: ProducerRecord, size: int) -> TopicPartition | None:
        """Return the partition that a record will be counted in; None without limits, and while its topic is not known."""
        if self._limits is None:
            return None
        self._writer.check_accepting()  # a closed producer adds no topic
        return self._router.choose(record.topic, record.key, record.partition, size, self._limits.is_full)

    def _reserve_nowait(self, tp: TopicPartition | None, size: int) -> None:
        """Reserve the room for a record, or raise QueueFull with the limit that is reached."""
        limits = self._limits.of(tp) if self._limits is not None and tp is not None else None
        if limits is not None and not limits.try_reserve(size):
            raise QueueFull(f"no room for {size} bytes: {limits.shortage(size)}")
        if not self._memory.try_reserve(size):
            reason = self._memory.shortage(size)
            self._give_back(tp, size)
            raise QueueFull(f"no room for {size} bytes: {reason}")

    async def _reserve(self, end: RecordEnd, tp: TopicPartition | None, size: int) -> None:
        """Wait for the room for a record: first in its partition, so that a full one holds no memory of the others."""
        if self._limits is not None and tp is not None:
            await self._wait_for(self._limits.of(tp), end, size)
        try:
            await self._wait_for(self._memory, end, size)
        except BaseException:
            self._give_back(tp, size)
            raise

    async def _wait_for(self, limits: ProducerMemory, end: RecordEnd, size: int) -> None:
        if not limits.try_reserve(size):
            self._writer.before_wait()
            end.record = end.record._replace(headers=copy_headers(end.record.headers))
            await limits.reserve(size)

    def _give_back(self, tp: TopicPartition | None, size: int) -> None:
        if self._limits is not None and tp is not None:
            self._limits.release(tp, size)

    def _append(self, end: RecordEnd, tp: TopicPartition | None, size: int) -> bool:
        """Append a record to its batch. If its topic is no longer known, it waits for the metadata without being counted."""
        if tp is not None and not self._router.knows(tp):
            self._give_back(tp, size)
            tp = None
        if tp is None and self._limits is not None:
            tp = self._partition_found(end.record, size, self._limits)
        if self._hooks is not None:
            end.report_start()
        topic, value, key, headers, partition, timestamp = end.record
        number = partition if tp is None else tp.partition
        try:
            is_filled = self._writer.put(topic, value, key, headers, number, timestamp, size, end)
        except BaseException:
            self._give_back(tp, size)
            raise
        self._number(end)
        return is_filled

    def _partition_found(
        self, record: ProducerRecord, size: int, limits: PartitionLimits
    ) -> TopicPartition | None:
        """Count a record in its partition if its topic became known while its caller waited for memory."""
        try:
            tp = self._partition_of(record, size)
        except BaseException:
            self._memory.release(size)
            raise
        if tp is not None:
            limits.of(tp).force(size)
        return tp

    def _number(self, end: RecordEnd) -> None:
        """Give an accepted record its sequence id: one for each value, as in Pulsar, not for each chunk."""
        if self._last_sequence_id is not None:
            self._last_sequence_id += 1
            end.sequence_id = self._last_sequence_id


def send_steps(
    path: RecordPath,
    writer: RecordWriter,
    chunks: ChunkWriter,
    interceptors: Iterable[ProduceInterceptor],
    hooks: Hooks,
    initial_sequence_id: int | None,
) -> SendSteps | None:
    """Return the additional steps of a producer, or None if it has none; raise ConfigError for an invalid argument."""
    chain = ProducerInterceptors(interceptors)
    check_sequence_id(initial_sequence_id)
    listening = hooks.with_listener("on_send_start", "on_send_end")
    has_limits = path.accumulator.partition_limits is not None
    if not chain and listening is None and not has_limits and initial_sequence_id is None:
        return None
    return SendSteps(path, writer, chunks, chain, listening, initial_sequence_id)
