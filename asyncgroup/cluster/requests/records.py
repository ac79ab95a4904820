"""Delete records, at the partitions' leaders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from asyncgroup.cluster.client import ClusterClient
from asyncgroup.cluster.requests.fan_out import Ask, request_apart
from asyncgroup.cluster.requests.results import Results
from asyncgroup.cluster.requests.routes import ByLeader, Target
from asyncgroup.errors import BrokerError
from asyncgroup.model import TopicPartition
from asyncgroup.net.backoff import RetryLoop
from asyncgroup.wire import messages as m

__all__ = ["HIGH_WATERMARK", "delete_records"]

HIGH_WATERMARK: Final = -1
"""Instead of an offset: all records that consumers can read when the leader is asked first."""

TIMEOUT_MS: Final = 30_000
"""Milliseconds that a leader may wait until the followers have also deleted the records."""


async def delete_records(
    cluster: ClusterClient,
    offsets: Mapping[TopicPartition, int],
    *,
    ask_ends: Ask[TopicPartition, int] | None = None,
    retry: RetryLoop | None = None,
) -> Results[TopicPartition, int]:
    """Delete the records before these offsets (KIP-107); return the new log start offset of each partition.

    HIGH_WATERMARK is looked up once, with `ask_ends`, which is needed for nothing else. The broker would take the high watermark of
    the moment, so a repetition after a lost response would delete what was written since. The caller tracks the topics. Raises
    ClosedError.
    """
    timeout = max(cluster.config.request_timeout, TIMEOUT_MS / 1000 + 1)
    known = {tp: offset for tp, offset in offsets.items() if offset != HIGH_WATERMARK}

    async def ask(target: Target, asked: list[TopicPartition]) -> Results[TopicPartition, int]:
        results: Results[TopicPartition, int] = Results()
        if unknown := [tp for tp in asked if tp not in known]:
            assert ask_ends is not None
            ends = await ask_ends(target, unknown)
            known.update(ends.values)
            results.errors.update(ends.errors)
        before = {tp: known[tp] for tp in asked if tp in known}
        if not before:
            return results
        response = await target.request(m.DeleteRecordsRequest, lambda _: _request(before), timeout=timeout)
        for topic in response.topics:
            for part in topic.partitions:
                tp = TopicPartition(topic.name, part.partition_index)
                if part.error_code:
                    what = f"deleting records of {tp} before offset {known.get(tp)}"
                    results.errors[tp] = BrokerError(part.error_code, what)
                else:
                    results.values[tp] = part.low_watermark
        return results

    route = ByLeader(cluster, "deleting records of")
    return await request_apart(offsets, route, ask, api="DeleteRecords", retry=retry)


def _request(offsets: Mapping[TopicPartition, int]) -> m.DeleteRecordsRequest:
    request = m.DeleteRecordsRequest
    topics: dict[str, m.DeleteRecordsRequest.DeleteRecordsTopic] = {}
    for tp, offset in offsets.items():
        topic = topics.setdefault(tp.topic, request.DeleteRecordsTopic(tp.topic, []))
        topic.partitions.append(request.DeleteRecordsPartition(tp.partition, offset))
    return request(list(topics.values()), timeout_ms=TIMEOUT_MS)
