"""Names that an EmbeddedCluster, and an admin client of Pulsar, have for what an EmbeddedPulsar calls otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["FOREIGN_MEMBERS", "FOREIGN_OPTIONS"]

FOREIGN_MEMBERS: Final[Mapping[str, str]] = {
    "bootstrap_servers": "pulsar.service_url",
    "commit": "pulsar.create_subscription(topic, name), and messages that a consumer acknowledges",
    "create_partitioned_topic": "pulsar.create_topic(topic, partitions)",
    "create_partitions": "pulsar.update_partitions(topic, total)",
    "group": "pulsar.subscription(topic, name)",
    "groups": "pulsar.topic(topic).subscriptions",
    "leader": "pulsar.topic(topic).brokers",
    "move_leader": "pulsar.unload(topic, to=broker)",
    "nodes": "pulsar.brokers",
    "records": "pulsar.messages(topic)",
    "slow_node": "pulsar.slow_broker(broker, delay)",
    "start_node": "pulsar.start_broker(broker)",
    "stats": "pulsar.topic(topic) and pulsar.subscription(topic, name)",
    "stop_node": "pulsar.stop_broker(broker)",
    "subscriptions": "pulsar.topic(topic).subscriptions",
    "web_service_url": "pulsar.admin_url",
}
"""Of an EmbeddedPulsar and of a PulsarServer."""

FOREIGN_OPTIONS: Final[Mapping[str, str]] = {
    "creates_topics": "auto_create_topics",
    "node": "brokers",
    "nodes": "brokers",
    "partitions": "topics={'orders': 6}",
    "ports": "port, of the first broker",
}
"""Of arguments."""
