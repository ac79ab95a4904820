"""What a group has done: marks, commits, and committed offsets.

A mark changes `partition_offsets` (pure state), `committer` brings what is new to the coordinator: requests and the table
of answers are in `commit_plan`, one request at a time is `flights`' business. `fetch_offsets` asks for what is committed,
`manager` is all of it for those without a group membership.
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
