"""What a group has done: marks, commits, and committed offsets."""

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
