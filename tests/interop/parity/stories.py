"""All stories, by name."""

from __future__ import annotations

from typing import Final

from tests.interop.parity import (
    admin,
    edges,
    groups,
    more_groups,
    nodes,
    offsets,
    records,
    server,
    topics,
    transactions,
)
from tests.interop.parity.scene import Story

__all__ = ["NODE_STORIES", "STORIES"]

_TOLD: Final[tuple[Story, ...]] = (
    groups.refused_joins,
    groups.a_member_alone,
    groups.two_members,
    groups.static_members,
    groups.unknown_to_the_group,
    more_groups.given_ids,
    more_groups.members_out_of_time,
    more_groups.chosen_protocols,
    more_groups.several_statics,
    more_groups.offset_fetches_of_members,
    offsets.commits_without_members,
    offsets.commits_of_members,
    offsets.offsets_of_deleted_topics,
    offsets.deleted_offsets,
    records.writes,
    records.refused_batches,
    records.idempotent_writes,
    records.topics_that_want_more,
    records.fetches,
    records.fetch_sessions,
    records.lookups,
    topics.created_topics,
    topics.described_topics,
    topics.described_cluster,
    topics.more_partitions,
    topics.deleted_topics,
    topics.changed_settings,
    transactions.started_producers,
    transactions.committed_and_aborted,
    transactions.fenced_producers,
    transactions.out_of_order,
    transactions.offsets_in_transactions,
    admin.altered_settings,
    admin.described_producers,
    admin.described_transactions,
    admin.moved_partitions,
    edges.topics_made_anew,
    edges.partitions_added_by_writing,
    edges.markers_of_nobody,
    edges.batches_cut_short,
    edges.sequences_at_their_end,
    server.api_versions,
    server.improper_requests,
)

NODE_STORIES: Final[dict[str, Story]] = {
    story.__name__: story for story in (nodes.wrong_leaders, nodes.wrong_coordinators)
}
"""Those that want three nodes."""

STORIES: Final[dict[str, Story]] = {story.__name__: story for story in _TOLD}
"""The stories that are told to both brokers."""
