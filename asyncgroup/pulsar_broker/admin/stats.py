"""The statistics of the admin API: those fields of Pulsar's that tests of clients read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from asyncgroup.pulsar.wire.enums import SubType
from asyncgroup.pulsar_broker.subscriptions.subscription import TopicSubscription
from asyncgroup.pulsar_broker.topics.topic import BrokerTopic

__all__ = ["internal_stats", "partitioned_stats", "topic_stats"]


def topic_stats(topic: BrokerTopic) -> dict[str, Any]:
    """Return `…/stats`."""
    return {
        "msgInCounter": topic.message_count,
        "bytesInCounter": topic.log.size_from(0),
        "storageSize": topic.log.size_from(0),
        "backlogSize": topic.backlog_size,
        "publishers": [
            {
                "accessMode": each.mode.published_name,
                "clientVersion": each.client_version,
                "producerName": each.name,
                "producerId": each.command.producer_id,
                "metadata": dict(each.command.metadata),
            }
            for each in topic.producers
        ],
        "subscriptions": {name: _subscription(topic, each) for name, each in topic.subscriptions.items()},
    }


def _subscription(topic: BrokerTopic, subscription: TopicSubscription) -> dict[str, Any]:
    active, kind = subscription.active, subscription.kind
    counts_unacked = kind in (SubType.SHARED, SubType.KEY_SHARED)  # as `Consumer.incrementUnackedMessages`
    return {
        "msgBacklog": subscription.backlog,
        "backlogSize": topic.log.size_from(subscription.cursor.mark_delete + 1),
        "type": "None" if kind is None or not subscription.consumers else kind.published_name,
        "isDurable": subscription.is_durable,
        "activeConsumerName": None if active is None else active.name,
        "unackedMessages": sum(each.unacked for each in subscription.consumers) if counts_unacked else 0,
        "consumers": [
            {
                "consumerName": each.name,
                "availablePermits": each.permits,
                "unackedMessages": each.unacked if counts_unacked else 0,
                "blockedConsumerOnUnackedMsgs": each.is_blocked,
                "metadata": dict(each.command.metadata),
            }
            for each in subscription.consumers
        ],
    }


def partitioned_stats(parts: Sequence[BrokerTopic]) -> dict[str, Any]:
    """Return `…/partitioned-stats`: the sums, and the statistics of each partition by its name."""
    found = {str(topic.name): topic_stats(topic) for topic in parts}
    backlog: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    consumers: dict[str, list[Any]] = {}
    for stats in found.values():
        for name, each in stats["subscriptions"].items():
            backlog[name] += each["msgBacklog"]
            sizes[name] += each["backlogSize"]
            consumers.setdefault(name, []).extend(each["consumers"])
    return {
        "msgInCounter": sum(stats["msgInCounter"] for stats in found.values()),
        "storageSize": sum(stats["storageSize"] for stats in found.values()),
        "backlogSize": sum(stats["backlogSize"] for stats in found.values()),
        "publishers": [each for stats in found.values() for each in stats["publishers"]],
        "subscriptions": {
            name: {"msgBacklog": backlog[name], "backlogSize": sizes[name], "consumers": consumers[name]}
            for name in consumers
        },
        "metadata": {"partitions": len(parts)},
        "partitions": found,
    }


def internal_stats(topic: BrokerTopic) -> dict[str, Any]:
    """Return `…/internalStats`: the positions of the cursors."""
    log = topic.log
    return {
        "numberOfEntries": len(log),
        "totalSize": sum(len(entry.payload) for entry in log),
        "lastConfirmedEntry": _position(topic, log.end - 1),
        "cursors": {
            name: {
                "markDeletePosition": _position(topic, each.cursor.mark_delete),
                "readPosition": _position(topic, each.read_to),
                "messagesConsumedCounter": each.cursor.acked_count,
            }
            for name, each in topic.subscriptions.items()
        },
    }


def _position(topic: BrokerTopic, index: int) -> str:
    if index < topic.log.first:
        ledger, entry = topic.log.position_of(topic.log.first)
        return f"{ledger}:{entry - 1}"
    ledger, entry = topic.log.position_of(index)
    return f"{ledger}:{entry}"
