"""Where a log truly ends: what its leader holds, whatever readers may see of it yet."""

from __future__ import annotations

from asyncgroup.cluster import Cluster
from asyncgroup.consumer.validation import REPLICA_ID_VERSION, epoch_end_offsets
from asyncgroup.errors import BrokerError, ErrorCode, UnsupportedVersionError
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m

__all__ = ["leaders_end"]


async def leaders_end(cluster: Cluster, tp: TopicPartition) -> int | None:
    """The end of the leader's log, by where its own epoch ends (OffsetForLeaderEpoch, KIP-101); asks who leads before.

    The high watermark may lie before records that were read already, for as long as a new leader waits for its
    followers; the leader of a clean election has those records all the same. None where the broker cannot tell.
    One try. Raises BrokerError, TransportError.
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
