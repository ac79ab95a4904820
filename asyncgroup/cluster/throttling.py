"""Client-side throttling: the delay that a response's `throttle_time_ms` asks for (KIP-219).

In older versions of a response the broker delays the response itself; if the client waited as well, the delay would
double.
"""

from __future__ import annotations

import logging
from typing import Final

from asyncgroup.wire.message import Message

__all__ = ["CLIENT_THROTTLE_VERSIONS", "MAX_THROTTLE_SECONDS", "throttle_seconds"]

MAX_THROTTLE_SECONDS: Final = 60.0
"""Longest throttle time that is obeyed, in seconds.

A malformed response may ask for weeks. A broker that really throttles for longer has muted the connection anyway.
"""

_log = logging.getLogger("asyncgroup.cluster")

CLIENT_THROTTLE_VERSIONS: Final[dict[str, int]] = {
    "AddOffsetsToTxnResponse": 1,
    "AddPartitionsToTxnResponse": 1,
    "ApiVersionsResponse": 2,
    "CreatePartitionsResponse": 1,
    "CreateTopicsResponse": 3,
    "DeleteGroupsResponse": 1,
    "DeleteRecordsResponse": 1,
    "DeleteTopicsResponse": 2,
    "DescribeConfigsResponse": 2,
    "DescribeGroupsResponse": 2,
    "EndTxnResponse": 1,
    "FetchResponse": 8,
    "FindCoordinatorResponse": 2,
    "HeartbeatResponse": 2,
    "InitProducerIdResponse": 1,
    "JoinGroupResponse": 3,
    "LeaveGroupResponse": 2,
    "ListGroupsResponse": 2,
    "ListOffsetsResponse": 3,
    "MetadataResponse": 6,
    "OffsetCommitResponse": 4,
    "OffsetFetchResponse": 4,
    "ProduceResponse": 6,
    "SyncGroupResponse": 2,
    "TxnOffsetCommitResponse": 1,
}
"""First version of each response whose throttle time the client must obey (`shouldClientThrottle` of kafka-clients)."""


def throttle_seconds(response: Message, version: int, milliseconds: int, address: object) -> float:
    """Return the seconds during which no request may be sent on the connection to `address`.

    `milliseconds` is the throttle time in the response. More than `MAX_THROTTLE_SECONDS` is reduced to that, with a warning.
    """
    if milliseconds <= 0 or version < CLIENT_THROTTLE_VERSIONS.get(response.NAME, 0):
        return 0.0
    seconds = milliseconds / 1000
    if seconds <= MAX_THROTTLE_SECONDS:
        return seconds
    text = "%s: %s has a throttle_time_ms of %.0f s; the client waits for %g s"
    _log.warning(text, address, response.NAME, seconds, MAX_THROTTLE_SECONDS)
    return MAX_THROTTLE_SECONDS
