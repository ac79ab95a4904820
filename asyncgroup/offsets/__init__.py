"""What a group has done: marks, commits, and committed offsets."""

from asyncgroup.offsets.manager import GROUP_LANE, OffsetManager
from asyncgroup.offsets.partition_offsets import CommittedOffset, MemberIdentity, PartitionOffsets

__all__ = ["GROUP_LANE", "CommittedOffset", "MemberIdentity", "OffsetManager", "PartitionOffsets"]
