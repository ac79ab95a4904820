"""Offsets of a consumer group: marks, commits, and committed offsets.

Marks change the pure state in `partition_offsets`; `committer` sends new marks to the group coordinator, one request at a
time (`SingleFlight`). `commit_requests` has the request, the table of its error codes, and what a refusal means for the
member. `fetch_offsets` requests committed offsets, and `manager` offers all of this without a group membership.

The metadata of a commit: `commit_metadata` has the text of users beside the window of a work queue, which `window_marks` keeps and
`window_encoding` writes; `metadata_limit` says how long it may be, `parallel_consumer_metadata` reads that of another client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgroup.lazy_names import lazy_names

if TYPE_CHECKING:
    from asyncgroup.offsets.committer import GROUP_LANE, Committer
    from asyncgroup.offsets.manager import OffsetManager, PartitionOffsets
    from asyncgroup.offsets.partition_offsets import (
        CommittedOffset,
        MemberIdentity,
        PartitionMarks,
    )

__all__ = [
    "GROUP_LANE",
    "CommittedOffset",
    "Committer",
    "MemberIdentity",
    "OffsetManager",
    "PartitionMarks",
    "PartitionOffsets",
]

_NAMES = {
    "committer": ["GROUP_LANE", "Committer"],
    "manager": ["OffsetManager", "PartitionOffsets"],
    "partition_offsets": ["CommittedOffset", "MemberIdentity", "PartitionMarks"],
}
"""The public names of each module."""

if not TYPE_CHECKING:  # a type checker that saw __getattr__ would accept any name
    __getattr__, __dir__ = lazy_names(__name__, _NAMES)
