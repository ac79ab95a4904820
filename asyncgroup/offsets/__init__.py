"""Offsets of a consumer group: marks, commits, and committed offsets.

Marks change the pure state in `partition_offsets`; `committer` sends new marks to the group coordinator, one request at a
time (`single_flight`). Requests and the table of error codes are in `commit_plan`. `fetch_offsets` requests committed
offsets, and `manager` offers all of this without a group membership.
"""

from asyncgroup.offsets.committer import GROUP_LANE, Committer
from asyncgroup.offsets.manager import OffsetManager
from asyncgroup.offsets.partition_offsets import CommittedOffset, MemberIdentity, PartitionOffsets

__all__ = [
    "GROUP_LANE",
    "CommittedOffset",
    "Committer",
    "MemberIdentity",
    "OffsetManager",
    "PartitionOffsets",
]
