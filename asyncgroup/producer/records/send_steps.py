"""The additional steps of a send: interceptors, hooks of each record, limits for each partition, our own sequence ids.

A producer that uses none of them has no `SendSteps`: its records go through the `RecordWriter` only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from asyncgroup.errors import QueueFull
from asyncgroup.hooks import Hooks
from asyncgroup.interceptor import ProduceInterceptor, ProducerRecord
from asyncgroup.memory.pending_limits import PartitionLimits, ProducerMemory
from asyncgroup.model import RecordMetadata, TopicPartition
from asyncgroup.producer.arguments import (
    RecordFields,
    check_fields,
    check_records,
    check_sequence_id,
    copy_headers,
    measure_record,
)
from asyncgroup.producer.batches.results import RecordPromise
from asyncgroup.producer.interceptors import ProducerInterceptors
from asyncgroup.producer.records.chunks import ChunkWriter
from asyncgroup.producer.records.pipeline import RecordPipeline
from asyncgroup.producer.records.writer import RecordWriter

__all__ = ["SendSteps", "send_steps"]


class SendSteps:
    """Writes the records of a producer that needs any of these steps; the methods are those of `RecordWriter`.

    `hooks` is None unless they have a method for the events of each record.
    """

    def __init__(
        self,
        pipeline: RecordPipeline,
        writer: RecordWriter,
        chunks: ChunkWriter,
        interceptors: ProducerInterceptors,
        hooks: Hooks | None,
        initial_sequence_id: int | None,
    ) -> None:
        self._pipeline = pipeline
        self._router = pipeline.router
        self._memory = pipeline.memory
        self._limits = pipeline.accumulator.partition_limits
        self._writer = writer
        self._chunks = chunks
        self._interceptors = interceptors
        self._hooks = hooks
        self._last_sequence_id = initial_sequence_id

    def __repr__(self) -> str:
        return f"<SendSteps {self._limits}, last sequence id {self._last_sequence_id}>"

    def put(self, *_record: object) -> None:
        """Return None: every record takes the steps of `put_waiting` or of `put_at_once`."""

    async def put_waiting(
        self, record: ProducerRecord, future: asyncio.Future[RecordMetadata] | None
    ) -> bool | None:
        """Write a record, waiting until it is accepted; True if it filled a batch."""
        record = self._interceptors.on_send(record)
        is_awaited = future is not None
        promise = RecordPromise(record, self._interceptors, future, self._hooks, is_awaited=is_awaited)
        # from here on the promise has exactly one end: this call refuses it, or its batch has it
        try:
            size = measure_record(*record[1:])
            if size > self._chunks.max_size:
                await self._chunks.write(record, size, promise)
                self._number(promise)
                return True
            tp = self._partition_of(record, size)
            await self._reserve(promise, tp, size)
            return self._append(promise, tp, size)
        except BaseException as error:
            promise.refuse(error)
            raise

    def put_at_once(self, record: ProducerRecord, future: asyncio.Future[RecordMetadata]) -> None:
        """Write a record without waiting; raise QueueFull if a limit is reached."""
        record = self._interceptors.on_send(record)
        promise = RecordPromise(record, self._interceptors, future, self._hooks)
        try:
            size = measure_record(*record[1:])
            if size > self._chunks.max_size:
                self._chunks.write_nowait(record, size, promise)
                self._number(promise)
            else:
                tp = self._partition_of(record, size)
                self._reserve_nowait(tp, size)
                self._append(promise, tp, size)
        except BaseException as error:
            promise.refuse(error)
            raise

    async def put_all(self, records: Iterable[RecordFields]) -> None:
        """Write records without futures. If it raises, the earlier ones are written."""
        check_records(records)
        for record in records:
            try:
                topic, value, key, headers, partition, timestamp = record
            except (TypeError, ValueError):
                check_fields(record)
                raise
            made = ProducerRecord(topic, value, key, headers, partition, timestamp)
            if await self.put_waiting(made, None) or self._writer.turn_is_over():
                await self._writer.rest()

    def _partition_of(self, record: ProducerRecord, size: int) -> TopicPartition | None:
        """Return the partition that a record will be counted in; None without limits, and while its topic is not known."""
        if self._limits is None:
            return None
        self._pipeline.check_accepting()  # a closed producer adds no topic
        return self._router.choose(record.topic, record.key, record.partition, size, self._limits.is_full)

    def _reserve_nowait(self, tp: TopicPartition | None, size: int) -> None:
        """Reserve the room for a record, or raise QueueFull with the limit that is reached."""
        limits = self._limits.of(tp) if self._limits is not None and tp is not None else None
        if limits is not None and not limits.try_reserve(size):
            raise QueueFull(f"no room for {size} bytes: {limits.shortage(size)}")
        if not self._memory.try_reserve(size):
            reason = self._memory.shortage(size)  # before anything is released
            self._give_back(tp, size)
            raise QueueFull(f"no room for {size} bytes: {reason}")

    async def _reserve(self, promise: RecordPromise, tp: TopicPartition | None, size: int) -> None:
        """Wait for the room for a record: first in its partition, so that a full one holds no memory of the others."""
        if self._limits is not None and tp is not None:
            await self._wait_for(self._limits.of(tp), promise, size)
        try:
            await self._wait_for(self._memory, promise, size)
        except BaseException:
            self._give_back(tp, size)
            raise

    async def _wait_for(self, limits: ProducerMemory, promise: RecordPromise, size: int) -> None:
        if not limits.try_reserve(size):
            self._pipeline.before_wait()
            # the caller may modify its list during the wait, and the record was measured as it is
            promise.record = promise.record._replace(headers=copy_headers(promise.record.headers))
            await limits.reserve(size)

    def _give_back(self, tp: TopicPartition | None, size: int) -> None:
        if self._limits is not None and tp is not None:
            self._limits.release(tp, size)

    def _append(self, promise: RecordPromise, tp: TopicPartition | None, size: int) -> bool | None:
        """Append a record to its batch. If its topic is no longer known, it waits for the metadata without being counted."""
        if tp is not None and not self._router.knows(tp):
            # recreated, or forgotten, during the wait: the router counts it when the topic is known again
            self._give_back(tp, size)
            tp = None
        if tp is None and self._limits is not None:
            tp = self._partition_found(promise.record, size, self._limits)
        if self._hooks is not None:
            promise.report_start()  # before `put`: the record may have its result before that returns
        topic, value, key, headers, partition, timestamp = promise.record
        number = partition if tp is None else tp.partition
        try:
            is_filled = self._writer.put(topic, value, key, headers, number, timestamp, promise, size)
        except BaseException:
            self._give_back(tp, size)
            raise
        if self._last_sequence_id is not None:
            self._number(promise)
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

    def _number(self, promise: RecordPromise) -> None:
        """Give an accepted record its sequence id: one for each value, as in Pulsar, not for each chunk."""
        if self._last_sequence_id is not None:
            self._last_sequence_id += 1
            promise.sequence_id = self._last_sequence_id


def send_steps(
    pipeline: RecordPipeline,
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
    has_limits = pipeline.accumulator.partition_limits is not None
    if not chain and listening is None and not has_limits and initial_sequence_id is None:
        return None
    return SendSteps(pipeline, writer, chunks, chain, listening, initial_sequence_id)
