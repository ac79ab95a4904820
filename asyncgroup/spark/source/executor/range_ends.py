"""Look up the end of the leader's log, including records above the high watermark."""

from __future__ import annotations

from asyncgroup.cluster import ClusterClient
from asyncgroup.consumer.validation import REPLICA_ID_VERSION, epoch_end_offsets
from asyncgroup.errors import BrokerError, ErrorCode, UnsupportedVersionError
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m

__all__ = ["leaders_end"]


async def leaders_end(cluster: ClusterClient, tp: TopicPartition) -> int | None:
    """Return the end offset of the leader's current epoch (OffsetForLeaderEpoch, KIP-101), after a metadata refresh.

    While a new leader waits for its followers, the high watermark may be lower than offsets that were read already; after
    a clean election the leader has those records. Returns None if the broker cannot answer. Makes no retries. Raises
    BrokerError, TransportError.
    """
    await cluster.refresh()
    info, leader = cluster.view.partition(*tp), cluster.view.leader(tp)
    if info is None or leader < 0:
        raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, f"end of {tp}")
    if info.leader_epoch < 0:
        return None
    asked, epoch = m.OffsetForLeaderEpochRequest, info.leader_epoch
    topic = asked.OffsetForLeaderTopic(tp.topic, [asked.OffsetForLeaderPartition(tp.partition, epoch, epoch)])
    try:
        response = await cluster.request_versioned(
            leader,
            asked,
            lambda version: asked(replica_id=-1 if version >= REPLICA_ID_VERSION else -2, topics=[topic]),
        )
    except UnsupportedVersionError:
        return None
    code, end = epoch_end_offsets(response).get(tp, (ErrorCode.UNKNOWN_SERVER_ERROR, None))
    if code or end is None:
        raise BrokerError(code, f"end of {tp} in the log of node {leader}")
    return end.end_offset if end.is_known else None
