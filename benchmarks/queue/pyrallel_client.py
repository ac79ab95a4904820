"""pyrallel-consumer (on confluent-kafka): handlers as tasks, ordered by key. Runs in a separate environment."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from pyrallel_consumer.config import KafkaConfig  # type: ignore[import-not-found]
from pyrallel_consumer.consumer import PyrallelConsumer  # type: ignore[import-not-found]
from pyrallel_consumer.control_plane.metadata_encoder import (  # type: ignore[import-not-found]
    MetadataEncoder,
)
from pyrallel_consumer.dto import ExecutionMode, OrderingMode, WorkItem  # type: ignore[import-not-found]

from benchmarks.queue.load import POISON, Load

__all__ = ["metadata_sizes", "run"]

NO_LIMIT: Final = 1 << 30
"""Deliveries of a record that fails each time; it has no setting for an unlimited number."""


def _config(load: Load) -> KafkaConfig:
    settings = load.settings
    config = KafkaConfig(BOOTSTRAP_SERVERS=settings.bootstrap_servers, CONSUMER_GROUP=settings.group_id)
    config.dlq_enabled = False
    parallel = config.parallel_consumer
    parallel.ordering_mode = OrderingMode.KEY_HASH
    parallel.message_cache_max_bytes = settings.budget
    execution = parallel.execution
    execution.mode = ExecutionMode.ASYNC
    # its default is 1,000; fewer would also limit the records that it reads ahead, whose keys may differ
    execution.max_in_flight = max(execution.max_in_flight, settings.concurrency)
    execution.max_retries = NO_LIMIT
    execution.retry_backoff_ms = int(settings.retry * 1000)
    execution.exponential_backoff = settings.retry_factor > 1
    execution.max_retry_backoff_ms = int(settings.retry_max * 1000)
    return config


async def run(given: dict[str, Any]) -> dict[str, Any]:
    """A handler that returns acknowledges its record; one that raises is called again, and keeps its slot until then."""
    load = Load(given)
    await load.wait_for_start()
    settings = load.settings

    async def handle(item: WorkItem) -> None:
        if not load.has_begun:
            load.begin()
        if settings.kind == "block":
            await load.block()
        elif settings.kind == "work" and (seconds := load.seconds(item.offset)):
            await asyncio.sleep(seconds)
        if item.key[0] == POISON:
            raise load.fail(item.key)
        if settings.kind == "fresh":
            load.fresh(item.payload)
        else:
            load.done()

    consumer = PyrallelConsumer(config=_config(load), worker=handle, topic=settings.topic)
    await consumer.start()
    await load.finished.wait()
    figures = load.figures()
    await consumer.stop()
    return figures


def metadata_sizes(given: dict[str, Any]) -> dict[str, Any]:
    """Return the length of its metadata for each pattern, without its limit of 4,000 characters.

    A pattern is the offset after the last acknowledged one, and the list of later offsets that are not acknowledged.
    """
    encoder = MetadataEncoder(max_metadata_size=1 << 30)
    sizes = []
    for end, incomplete in given["patterns"]:
        done = set(range(end)).difference(incomplete)
        sizes.append(len(encoder.encode_metadata(done, 0)))
    return {"sizes": sizes}
