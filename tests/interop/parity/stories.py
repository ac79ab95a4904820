"""All stories, by name."""

from __future__ import annotations

from typing import Final

from tests.interop.parity import (
    admin,
    cluster_wide,
    edges,
    groups,
    limits,
    more_groups,
    more_records,
    more_transactions,
    nodes,
    offsets,
    rebalances,
    records,
    resources,
    sasl,
    server,
    settings,
    topics,
    transactions,
)
from tests.interop.parity.scene import Story

__all__ = ["LIMITED_STORIES", "NODE_STORIES", "SASL_STORIES", "STORIES"]

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
    rebalances.commits_meanwhile,
    rebalances.members_that_do_not_sync,
    rebalances.changed_subscriptions,
    rebalances.several_leave,
    rebalances.groups_of_all_kinds,
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
    more_records.chosen_codecs,
    more_records.chosen_times,
    more_records.records_without_keys,
    more_records.places_to_write,
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
    more_transactions.ends_told_twice,
    more_transactions.producers_of_both_ages,
    more_transactions.offsets_of_members,
    more_transactions.asked_at_once,
    admin.altered_settings,
    admin.described_producers,
    admin.described_transactions,
    admin.moved_partitions,
    resources.sizes_of_logs,
    resources.listed_resources,
    resources.described_resources,
    resources.pages_of_partitions,
    resources.elections,
    edges.topics_made_anew,
    edges.partitions_added_by_writing,
    edges.markers_of_nobody,
    edges.batches_cut_short,
    edges.sequences_at_their_end,
    cluster_wide.quotas,
    cluster_wide.scram_users,
    cluster_wide.acls,
    cluster_wide.features,
    cluster_wide.moved_directories,
    cluster_wide.quorum,
    settings.settings_of_brokers,
    settings.settings_of_groups,
    sasl.sasl_where_there_is_none,
    server.api_versions,
    server.improper_requests,
    server.versions_beyond,
)

NODE_STORIES: Final[dict[str, Story]] = {
    story.__name__: story for story in (nodes.wrong_leaders, nodes.moved_leaders, nodes.wrong_coordinators)
}
"""Those that want three nodes."""

LIMITED_STORIES: Final[dict[str, Story]] = {
    story.__name__: story
    for story in (
        limits.full_groups,
        limits.forgotten_groups,
        limits.transactions_out_of_time,
        limits.topics_made_on_demand,
    )
}
"""Those that want narrow limits."""

SASL_STORIES: Final[dict[str, Story]] = {
    story.__name__: story for story in (sasl.exchanges, sasl.unasked, sasl.sessions)
}
"""Those that want a listener with SASL."""

STORIES: Final[dict[str, Story]] = {story.__name__: story for story in _TOLD}
"""The stories that are told to both brokers."""
