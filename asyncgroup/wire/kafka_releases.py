"""The releases of Kafka that first had an API or a field, and what a user set to need it: for errors of older brokers only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["API_RELEASES", "FIELD_RELEASES", "needs_release"]

_GROUP_OFFSETS: Final = ("send_offsets with the offsets of a group's member (KIP-447)", "2.5")
_SAME_PRODUCER: Final = ("a transactional producer that goes on after a lost transaction (KIP-360)", "2.5")

API_RELEASES: Final[Mapping[str, tuple[str, str]]] = {
    "ConsumerGroupDescribe": ("a group of the consumer protocol (KIP-848)", "4.0"),
    "ConsumerGroupHeartbeat": ("group_protocol='consumer'", "4.0"),
    "DeleteGroups": ("the deletion of a group", "1.1"),
    "DescribeTransactions": ("the state of a transaction (KIP-664)", "3.0"),
    "InitProducerId": (
        "an idempotent or transactional producer (enable_idempotence, transactional_id)",
        "0.11",
    ),
    "ListTransactions": ("a list of transactions (KIP-664)", "3.0"),
    "OffsetForLeaderEpoch": ("the end of a leader's epoch (KIP-101)", "0.11"),
}
"""By the name of an API: what needs it, and the first release."""

FIELD_RELEASES: Final[Mapping[str, tuple[str, str]]] = {
    "group_instance_id": ("group_instance_id", "2.3"),
    "InitProducerIdRequest.producer_epoch": _SAME_PRODUCER,
    "InitProducerIdRequest.producer_id": _SAME_PRODUCER,
    "OffsetFetchRequest.require_stable": ("offsets that no open transaction changes (KIP-447)", "2.5"),
    "TxnOffsetCommitRequest.generation_id": _GROUP_OFFSETS,
    "TxnOffsetCommitRequest.group_instance_id": _GROUP_OFFSETS,
    "TxnOffsetCommitRequest.member_id": _GROUP_OFFSETS,
}
"""By the name of a field, with that of its message if it means something else there."""


def needs_release(api: str, field: str | None = None) -> str | None:
    """Return what needs which release of Kafka, for an API or a field of its request; None if nothing is known about it."""
    if field is None:
        found = API_RELEASES.get(api)
    else:
        found = FIELD_RELEASES.get(f"{api}.{field}") or FIELD_RELEASES.get(field)
    return None if found is None else f"{found[0]} needs Kafka {found[1]}"
