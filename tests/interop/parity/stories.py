"""All stories, by name."""

from __future__ import annotations

from typing import Final

from tests.interop.parity import (
    admin,
    cluster_wide,
    consumer_groups,
    edges,
    groups,
    limits,
    mixed_groups,
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
    groups.unknown_groups_and_members,
    more_groups.pending_member_ids,
    more_groups.expired_members,
    more_groups.selected_protocols,
    more_groups.several_static_members,
    more_groups.offset_fetches_of_members,
    rebalances.commits_during_a_rebalance,
    rebalances.members_that_do_not_sync,
    rebalances.changed_subscriptions,
    rebalances.several_leaving_members,
    rebalances.groups_of_all_kinds,
    consumer_groups.refused_consumer_heartbeats,
    consumer_groups.consumers_that_move_partitions,
    consumer_groups.changed_topics_of_consumers,
    consumer_groups.static_consumers,
    consumer_groups.transactional_offsets_of_consumers,
    consumer_groups.consumers_with_patterns,
    consumer_groups.offsets_of_consumers,
    mixed_groups.a_group_that_is_upgraded_and_downgraded,
    mixed_groups.classic_members_of_consumer_groups,
    mixed_groups.classic_members_that_change_their_topics,
    mixed_groups.static_members_that_change_their_protocol,
    mixed_groups.refused_upgrades,
    mixed_groups.upgrades_during_a_rebalance,
    offsets.commits_without_members,
    offsets.commits_of_members,
    offsets.offsets_of_deleted_topics,
    offsets.deleted_offsets,
    records.writes,
    records.refused_batches,
    records.idempotent_writes,
    records.topics_with_record_settings,
    records.fetches,
    records.fetch_sessions,
    records.lookups,
    more_records.topic_codecs,
    more_records.topic_timestamps,
    more_records.records_without_keys,
    more_records.restricted_topics,
    topics.created_topics,
    topics.texts_of_refusals,
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
    more_transactions.repeated_ends,
    more_transactions.producers_with_mixed_versions,
    more_transactions.offsets_of_members,
    more_transactions.batched_transactions,
    admin.altered_settings,
    admin.described_producers,
    admin.described_transactions,
    admin.moved_partitions,
    resources.sizes_of_logs,
    resources.listed_resources,
    resources.described_resources,
    resources.pages_of_partitions,
    resources.elections,
    edges.recreated_topics,
    edges.partitions_added_by_writing,
    edges.markers_without_transactions,
    edges.truncated_batches,
    edges.sequence_numbers_at_their_limit,
    cluster_wide.quotas,
    cluster_wide.scram_users,
    cluster_wide.acls,
    cluster_wide.features,
    cluster_wide.moved_directories,
    cluster_wide.quorum,
    settings.settings_of_brokers,
    settings.settings_of_groups,
    settings.security_settings_of_brokers,
    settings.all_settings_of_a_broker,
    settings.loggers,
    sasl.sasl_without_a_sasl_listener,
    server.api_versions,
    server.malformed_requests,
    server.unsupported_versions,
)

NODE_STORIES: Final[dict[str, Story]] = {
    story.__name__: story for story in (nodes.wrong_leaders, nodes.moved_leaders, nodes.wrong_coordinators)
}
"""Stories for three nodes."""

LIMITED_STORIES: Final[dict[str, Story]] = {
    story.__name__: story
    for story in (
        limits.full_groups,
        limits.expired_groups,
        limits.transaction_timeouts,
        limits.auto_created_topics,
        consumer_groups.consumers_at_their_limits,
        mixed_groups.mixed_groups_at_their_limits,
    )
}
"""Stories for narrow limits."""

SASL_STORIES: Final[dict[str, Story]] = {
    story.__name__: story for story in (sasl.exchanges, sasl.unasked, sasl.sessions)
}
"""Stories for a SASL listener."""

STORIES: Final[dict[str, Story]] = {story.__name__: story for story in _TOLD}
"""Stories for a single node."""
