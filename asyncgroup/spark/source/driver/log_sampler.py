"""Estimate the size of records for `maxBytesPerTrigger` by fetching a few record batches and reading their headers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final, TypeAlias

from asyncgroup.cluster import ClusterClient
from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.fetch_session import (
    TOPIC_ID_VERSION,
    PartitionData,
    build_fetch_request,
    sessionless_request,
)
from asyncgroup.errors import AsyncGroupError
from asyncgroup.model import TopicPartition
from asyncgroup.spark.source.driver.limits import BytesPerOffset
from asyncgroup.wire import messages as m
from asyncgroup.wire.batch_view import batch_sizes

__all__ = ["LogSampler"]

Offsets: TypeAlias = Mapping[TopicPartition, int]

_log = logging.getLogger("asyncgroup.spark")

SAMPLE_BYTES: Final = 64 * 1024
"""Approximate bytes of a log that are fetched at a time; the beginning of a larger batch is enough, as it has the header."""

SAMPLE_INTERVAL: Final = 10.0
"""Seconds between two samples of a partition."""


class LogSampler:
    """Samples the partitions of a query periodically."""

    def __init__(self) -> None:
        self._sampled_at: dict[TopicPartition, float] = {}
        """The loop's time of each partition's last sample."""

    async def sample(
        self, cluster: ClusterClient, start: Offsets, latest: Offsets, sizes: BytesPerOffset
    ) -> None:
        """Update `sizes` for partitions that have new records and are due for a sample. Failures are only logged."""
        now = asyncio.get_running_loop().time()
        due = {
            tp: offset
            for tp, offset in start.items()
            if offset < latest.get(tp, offset)
            and now - self._sampled_at.get(tp, float("-inf")) >= SAMPLE_INTERVAL
        }
        self._sampled_at = {tp: at for tp, at in self._sampled_at.items() if tp in latest} | dict.fromkeys(
            due, now
        )
        sizes.retain(latest)
        by_leader: dict[int, dict[TopicPartition, PartitionData]] = {}
        for tp, offset in due.items():
            topic, info = cluster.view.topics.get(tp.topic), cluster.view.partition(*tp)
            if topic is not None and info is not None and (leader := cluster.view.leader(tp)) >= 0:
                wanted = PartitionData(offset, info.leader_epoch, SAMPLE_BYTES, topic_id=topic.topic_id)
                by_leader.setdefault(leader, {})[tp] = wanted
        await asyncio.gather(*(_fetch(cluster, node_id, part, sizes) for node_id, part in by_leader.items()))


async def _fetch(
    cluster: ClusterClient,
    node_id: int,
    wanted: Mapping[TopicPartition, PartitionData],
    sizes: BytesPerOffset,
) -> None:
    known = all(one.topic_id != m.NO_UUID for one in wanted.values())
    config = ConsumerConfig(
        fetch_min_bytes=1
    )  # its fetch_max_bytes limits the response for any number of partitions
    try:
        response = await cluster.request_versioned(
            node_id,
            m.FetchRequest,
            lambda version: build_fetch_request(sessionless_request(wanted), config, 0.0, version),
            highest=None if known else TOPIC_ID_VERSION - 1,
        )
    except AsyncGroupError as error:
        _log.debug("record sizes could not be sampled: %s", error)
        return
    names = {one.topic_id: tp.topic for tp, one in wanted.items()}
    for topic in response.responses:
        for data in topic.partitions:
            tp = TopicPartition(topic.topic or names.get(topic.topic_id, ""), data.partition_index)
            if not data.error_code and data.records and tp in wanted:
                for size, offsets in batch_sizes(data.records):
                    sizes.observe(tp, size, offsets)
