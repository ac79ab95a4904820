"""From which version on a client has to obey a response's throttle time (KIP-219).

In older versions the broker has waited itself before it answered; waiting once more would double the pause.
"""

from __future__ import annotations

import logging
from typing import Final

from asyncgroup.wire.message import Message

__all__ = ["CLIENT_THROTTLE_VERSIONS", "MAX_THROTTLE_SECONDS", "throttle_seconds"]

MAX_THROTTLE_SECONDS: Final = 60.0
"""Seconds that no throttle is obeyed beyond. A broker that means more has muted the connection anyway; in a spoilt
answer the number may be that of weeks.
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
"""First version of each response whose throttle time the client obeys (`shouldClientThrottle` of kafka-clients)."""


def throttle_seconds(response: Message, version: int, address: object) -> float:
    """Seconds for which the connection to `address` has to be left alone after this response.

    More than `MAX_THROTTLE_SECONDS` is cut to that, with a warning.
    """
    milliseconds: int = getattr(response, "throttle_time_ms", 0)
    if milliseconds <= 0 or version < CLIENT_THROTTLE_VERSIONS.get(response.NAME, 0):
        return 0.0
    seconds = milliseconds / 1000
    if seconds <= MAX_THROTTLE_SECONDS:
        return seconds
    text = "%s: %s asks for a pause of %.0f s (throttle_time_ms); %g s are kept"
    _log.warning(text, address, response.NAME, seconds, MAX_THROTTLE_SECONDS)
    return MAX_THROTTLE_SECONDS
