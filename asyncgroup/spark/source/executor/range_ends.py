"""Look up the end of the leader's log, including records above the high watermark."""

from __future__ import annotations

from asyncgroup.cluster import ClusterClient
from asyncgroup.consumer.partition import TopicPartitionState
from asyncgroup.consumer.validation import PositionCheck, send_epoch_request
from asyncgroup.errors import BrokerError, ErrorCode, UnsupportedVersionError

__all__ = ["leaders_end"]


async def leaders_end(cluster: ClusterClient, partition: TopicPartitionState) -> int | None:
    """Return the end offset of the leader's current epoch (OffsetForLeaderEpoch, KIP-101), after a metadata refresh.

    While a new leader waits for its followers, the high watermark may be lower than offsets that were read already; after
    a clean election the leader has those records. Returns None if the broker cannot answer. Makes no retries. Raises
    BrokerError, TransportError.
    """
    await cluster.refresh()
    tp = partition.tp
    info, leader = cluster.view.partition(*tp), cluster.view.leader(tp)
    if info is None or leader < 0:
        raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, f"end of {tp}")
    epoch = info.leader_epoch
    if epoch < 0:
        return None
    check = PositionCheck(partition, partition.version, fetched_epoch=epoch, leader_epoch=epoch)
    try:
        ends = await send_epoch_request(cluster, leader, [check])
    except UnsupportedVersionError:
        return None
    code, end = ends.get(tp, (ErrorCode.UNKNOWN_SERVER_ERROR, None))
    if code or end is None:
        raise BrokerError(code, f"end of {tp} in the log of node {leader}")
    return end.end_offset if end.is_known else None
