"""Write the records that readers read, by Produce requests that every broker supports; each broker has one node."""

from __future__ import annotations

from asyncgroup.errors import BrokerError
from asyncgroup.wire import messages as m
from asyncgroup.wire.records import BatchBuilder
from benchmarks.broker.member import RawConnection

__all__ = ["load"]

PRODUCE = 7
BATCH_BYTES = 64 << 10
FIRST_TIMESTAMP = 1_700_000_000_000
TIMEOUT_MS = 30_000


async def load(address: str, topic: str, partitions: int, records: int, size: int) -> None:
    """Write `records` records with values of `size` bytes, the same number (rounded up) to each partition."""
    connection = await RawConnection.open(address)
    share, value = -(-records // partitions), bytes(size)
    try:
        written = 0
        while written < share:
            count, batch = _batch(value, share - written)
            written += count
            for partition in range(partitions):
                await _produce(connection, topic, partition, batch)
    finally:
        connection.close()


def _batch(value: bytes, most: int) -> tuple[int, bytes]:
    """Return the number of records in a full record batch, at most `most`, and its bytes."""
    builder = BatchBuilder(size_limit=BATCH_BYTES)
    count = 0
    while count < most and builder.append(FIRST_TIMESTAMP + count, b"%08d" % count, value):
        count += 1
    return count, builder.build()


async def _produce(connection: RawConnection, topic: str, partition: int, batch: bytes) -> None:
    part = m.ProduceRequest.PartitionProduceData(partition, batch)
    data = m.ProduceRequest.TopicProduceData(name=topic, partition_data=[part])
    request = m.ProduceRequest(acks=-1, timeout_ms=TIMEOUT_MS, topic_data=[data])
    answer = await connection.request(request, PRODUCE)
    if code := answer.responses[0].partition_responses[0].error_code:
        raise BrokerError(code, f"{topic}-{partition}")
