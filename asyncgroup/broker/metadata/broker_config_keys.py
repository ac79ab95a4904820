"""Dynamic broker and group configs with the types and defaults of Kafka 4.3 (`DynamicBrokerConfig`, `GroupConfig`).

Also the names of the configs that cannot be changed while a broker runs.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from asyncgroup.broker.log.topic_config_keys import (
    TOPIC_CONFIG_KEYS,
    TOPIC_DOCUMENTATION,
    ConfigKey,
    ConfigType,
)

__all__ = [
    "BROKER_CONFIG_KEYS",
    "BROKER_TO_TOPIC",
    "GROUP_CONFIG_KEYS",
    "OTHER_UNITS",
    "READ_ONLY_CONFIGS",
    "REPLICATION_QUOTAS",
    "SECURITY_CONFIGS",
    "TOPIC_TO_BROKER",
    "BrokerConfigKey",
    "GroupConfigKey",
]

_TYPES: Final = {
    "BOOLEAN": ConfigType.BOOLEAN,
    "DOUBLE": ConfigType.DOUBLE,
    "INT": ConfigType.INT,
    "LIST": ConfigType.LIST,
    "LONG": ConfigType.LONG,
    "STRING": ConfigType.STRING,
}


class BrokerConfigKey(NamedTuple):
    """A dynamic broker config: the rule for its values, its default (None: unset), its documentation."""

    rule: ConfigKey
    default: str | None
    documentation: str


class GroupConfigKey(NamedTuple):
    """A dynamic group config: the rule for its values, the broker's limits for a number, its documentation.

    The limits are Kafka's defaults of the broker configs `group.<kind>.min.<rest>` and `group.<kind>.max.<rest>`.
    """

    rule: ConfigKey
    lowest: int | None
    highest: int | None
    documentation: str

    def outside_limits(self, name: str, value: str) -> str:
        """Return which limit a number exceeds, "" if none, worded as Kafka's `GroupConfig.validate`."""
        kind, _, rest = name.partition(".")
        rest = rest.removeprefix("num.")
        if self.lowest is not None and int(value) < self.lowest:
            return f"{name} must be greater than or equal to group.{kind}.min.{rest}"
        if self.highest is not None and int(value) > self.highest:
            return f"{name} must be less than or equal to group.{kind}.max.{rest}"
        return ""


_UNSET: Final = {
    "log.flush.interval.ms": "flush.ms",
    "log.retention.ms": "retention.ms",
    "log.roll.jitter.ms": "segment.jitter.ms",
    "log.roll.ms": "segment.ms",
}
"""Broker configs without a default: a config in another unit applies if they are unset. By name, the topic config."""

OTHER_UNITS: Final = {
    "log.flush.interval.ms": ("log.flush.scheduler.interval.ms", str(2**63 - 1)),
    "log.retention.ms": ("log.retention.hours", "168"),
    "log.roll.jitter.ms": ("log.roll.jitter.hours", "0"),
    "log.roll.ms": ("log.roll.hours", "168"),
}
"""The config in another unit that applies if a config is unset, and its default
(`DynamicBrokerConfig.brokerConfigSynonyms`).
"""

BROKER_TO_TOPIC: Final[dict[str, str]] = {
    **{key.synonym: name for name, key in TOPIC_CONFIG_KEYS.items() if key.synonym is not None},
    **_UNSET,
}
"""The topic config that each broker config is the default of (`ServerTopicConfigSynonyms`)."""

TOPIC_TO_BROKER: Final[dict[str, str]] = {topic: broker for broker, topic in BROKER_TO_TOPIC.items()}
"""The broker config that is the default of each topic config: the inverse of BROKER_TO_TOPIC."""

REPLICATION_QUOTAS: Final = (
    "follower.replication.throttled.rate",
    "leader.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
)
"""Configs that are described only if they are set (`QuotaConfig`)."""

_TUNING: Final = """
background.threads INT 10
cordoned.log.dirs LIST
follower.fetch.last.tiered.offset.enable BOOLEAN false
group.consumer.assignment.interval.ms INT 1000
group.coordinator.cached.buffer.max.bytes INT 1048588
group.share.assignment.interval.ms INT 1000
group.streams.assignment.interval.ms INT 1000
log.cleaner.backoff.ms LONG 15000
log.cleaner.dedupe.buffer.size LONG 134217728
log.cleaner.io.buffer.load.factor DOUBLE 0.9
log.cleaner.io.buffer.size INT 524288
log.cleaner.io.max.bytes.per.second DOUBLE 1.7976931348623157E308
log.cleaner.threads INT 1
max.connection.creation.rate INT 2147483647
max.connections INT 2147483647
max.connections.per.ip INT 2147483647
max.connections.per.ip.overrides STRING
metric.reporters LIST org.apache.kafka.common.metrics.JmxReporter
num.io.threads INT 8
num.network.threads INT 3
num.recovery.threads.per.data.dir INT 2
num.replica.fetchers INT 1
producer.id.expiration.ms INT 86400000
remote.fetch.max.wait.ms INT 500
remote.list.offsets.request.timeout.ms LONG 30000
remote.log.index.file.cache.total.size.bytes LONG 1073741824
remote.log.manager.copier.thread.pool.size INT 10
remote.log.manager.copy.max.bytes.per.second LONG 9223372036854775807
remote.log.manager.expiration.thread.pool.size INT 10
remote.log.manager.fetch.max.bytes.per.second LONG 9223372036854775807
remote.log.manager.follower.thread.pool.size INT 2
remote.log.reader.threads INT 10
share.coordinator.cached.buffer.max.bytes INT 1048588
transaction.partition.verification.enable BOOLEAN true
"""
"""Dynamic broker configs: name, type, default. Except for those in `_IN_EFFECT`, they are stored but have no effect."""

_GROUP: Final = """
consumer.assignment.interval.ms INT 1000 0 - 15000|Shortest time (ms) between two assignments of a consumer group.
consumer.heartbeat.interval.ms INT 5000 1 5000 15000|Time (ms) between two heartbeats of a member.
consumer.session.timeout.ms INT 45000 1 45000 60000|Time (ms) without a heartbeat after which a member is removed.
share.assignment.interval.ms INT 1000 0 - 15000|Shortest time (ms) between two assignments of a share group.
share.auto.offset.reset STRING latest - - -|Initial position of a share group: latest, earliest or by_duration:<ISO 8601>.
share.delivery.count.limit INT 5 2 - 10|Maximum number of deliveries of a record in a share group.
share.heartbeat.interval.ms INT 5000 1 5000 15000|Time (ms) between two heartbeats of a share group's member.
share.isolation.level STRING read_uncommitted - - -|Whether a share group sees records of open and aborted transactions.
share.partition.max.record.locks INT 2000 100 - 4000|Maximum number of records of a partition locked by a share group at a time.
share.record.lock.duration.ms INT 30000 1000 15000 60000|Time (ms) that a record of a share group stays locked.
share.renew.acknowledge.enable BOOLEAN true - - -|Whether members of a share group may renew their locks.
share.session.timeout.ms INT 45000 1 45000 60000|Time (ms) without a heartbeat after which a share group's member is removed.
streams.assignment.interval.ms INT 1000 0 - 15000|Shortest time (ms) between two assignments of a streams group.
streams.heartbeat.interval.ms INT 5000 1 5000 15000|Time (ms) between two heartbeats of a streams group's member.
streams.initial.rebalance.delay.ms INT 3000 0 - -|Time (ms) that a streams group waits for more members before its first assignment.
streams.num.standby.replicas INT 0 0 - 2|Standby replicas of each task of a streams group.
streams.session.timeout.ms INT 45000 1 45000 60000|Time (ms) without a heartbeat after which a streams group's member is removed.
"""
"""Group configs: name, type, default, lowest value, the broker's lowest and highest value, documentation.

Configs of the consumer protocol (KIP-848) are in effect. Configs of share groups and streams groups are stored without
effect, as this broker does not support such groups.
"""


_IN_EFFECT: Final = {
    "group.consumer.assignment.interval.ms": "Shortest time (ms) between two assignments of a consumer group.",
    "log.cleaner.backoff.ms": "Time (ms) that the log cleaner waits when no log is dirty enough.",
}


def _broker_keys() -> dict[str, BrokerConfigKey]:
    found = {}
    for name, topic_name in BROKER_TO_TOPIC.items():
        rule, documentation = TOPIC_CONFIG_KEYS[topic_name], TOPIC_DOCUMENTATION[topic_name]
        if name in _UNSET:
            documentation += " If unset, the config in another unit applies."
        found[name] = BrokerConfigKey(rule, None if name in _UNSET else rule.default, documentation)
    for name in REPLICATION_QUOTAS:
        text = "Bytes per second for moving replicas; stored, but without effect in this broker."
        found[name] = BrokerConfigKey(ConfigKey("", ConfigType.LONG, 0), None, text)
    for line in _TUNING.strip().splitlines():
        name, kind, default = [*line.split(" "), ""][:3]
        lowest = 1 if "threads" in name or "pool.size" in name else None
        rule = ConfigKey(default, _TYPES[kind], lowest)
        found[name] = BrokerConfigKey(
            rule, default, _IN_EFFECT.get(name, "Stored, but without effect in this broker.")
        )
    return dict(sorted(found.items()))


def _group_keys() -> dict[str, GroupConfigKey]:
    found = {}
    for line in _GROUP.strip().splitlines():
        facts, _, documentation = line.partition("|")
        name, kind, default, *numbers = facts.split(" ")
        least, low, high = [None if number == "-" else int(number) for number in numbers]
        found[name] = GroupConfigKey(ConfigKey(default, _TYPES[kind], least), low, high, documentation)
    return found


BROKER_CONFIG_KEYS: Final[dict[str, BrokerConfigKey]] = _broker_keys()
"""The dynamic broker configs, by name."""

GROUP_CONFIG_KEYS: Final[dict[str, GroupConfigKey]] = _group_keys()
"""The group configs, by name."""

SECURITY_CONFIGS: Final[frozenset[str]] = frozenset(
    [
        "config.providers",
        "listener.security.protocol.map",
        "listeners",
        "principal.builder.class",
        "sasl.enabled.mechanisms",
        "sasl.jaas.config",
        "sasl.kerberos.kinit.cmd",
        "sasl.kerberos.min.time.before.relogin",
        "sasl.kerberos.principal.to.local.rules",
        "sasl.kerberos.service.name",
        "sasl.kerberos.ticket.renew.jitter",
        "sasl.kerberos.ticket.renew.window.factor",
        "sasl.login.refresh.buffer.seconds",
        "sasl.login.refresh.min.period.seconds",
        "sasl.login.refresh.window.factor",
        "sasl.login.refresh.window.jitter",
        "sasl.mechanism.inter.broker.protocol",
        "ssl.cipher.suites",
        "ssl.client.auth",
        "ssl.enabled.protocols",
        "ssl.endpoint.identification.algorithm",
        "ssl.engine.factory.class",
        "ssl.key.password",
        "ssl.keymanager.algorithm",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.keystore.type",
        "ssl.protocol",
        "ssl.provider",
        "ssl.secure.random.implementation",
        "ssl.trustmanager.algorithm",
        "ssl.truststore.certificates",
        "ssl.truststore.location",
        "ssl.truststore.password",
        "ssl.truststore.type",
    ]
)
"""Security configs, which Kafka can change per listener or broker and this broker cannot change."""

READ_ONLY_CONFIGS: Final[frozenset[str]] = frozenset(
    [
        "add.partitions.to.txn.retry.backoff.max.ms",
        "add.partitions.to.txn.retry.backoff.ms",
        "advertised.listeners",
        "alter.config.policy.class.name",
        "alter.log.dirs.replication.quota.window.num",
        "alter.log.dirs.replication.quota.window.size.seconds",
        "authorizer.class.name",
        "auto.create.topics.enable",
        "auto.leader.rebalance.enable",
        "broker.heartbeat.interval.ms",
        "broker.id",
        "broker.rack",
        "broker.session.timeout.ms",
        "client.quota.callback.class",
        "connection.failed.authentication.delay.ms",
        "connections.max.idle.ms",
        "connections.max.reauth.ms",
        "controlled.shutdown.enable",
        "controller.listener.names",
        "controller.quorum.append.linger.ms",
        "controller.quorum.auto.join.enable",
        "controller.quorum.bootstrap.servers",
        "controller.quorum.election.backoff.max.ms",
        "controller.quorum.election.timeout.ms",
        "controller.quorum.fetch.max.bytes",
        "controller.quorum.fetch.snapshot.max.bytes",
        "controller.quorum.fetch.timeout.ms",
        "controller.quorum.request.timeout.ms",
        "controller.quorum.retry.backoff.ms",
        "controller.quorum.voters",
        "controller.quota.window.num",
        "controller.quota.window.size.seconds",
        "controller.socket.timeout.ms",
        "create.topic.policy.class.name",
        "default.replication.factor",
        "delegation.token.expiry.check.interval.ms",
        "delegation.token.expiry.time.ms",
        "delegation.token.max.lifetime.ms",
        "delegation.token.secret.key",
        "delete.records.purgatory.purge.interval.requests",
        "delete.topic.enable",
        "early.start.listeners",
        "fetch.max.bytes",
        "fetch.purgatory.purge.interval.requests",
        "group.consumer.assignors",
        "group.consumer.heartbeat.interval.ms",
        "group.consumer.max.assignment.interval.ms",
        "group.consumer.max.heartbeat.interval.ms",
        "group.consumer.max.session.timeout.ms",
        "group.consumer.max.size",
        "group.consumer.migration.policy",
        "group.consumer.min.assignment.interval.ms",
        "group.consumer.min.heartbeat.interval.ms",
        "group.consumer.min.session.timeout.ms",
        "group.consumer.session.timeout.ms",
        "group.coordinator.append.linger.ms",
        "group.coordinator.background.threads",
        "group.coordinator.rebalance.protocols",
        "group.coordinator.threads",
        "group.initial.rebalance.delay.ms",
        "group.max.session.timeout.ms",
        "group.max.size",
        "group.min.session.timeout.ms",
        "group.share.assignors",
        "group.share.delivery.count.limit",
        "group.share.heartbeat.interval.ms",
        "group.share.max.assignment.interval.ms",
        "group.share.max.delivery.count.limit",
        "group.share.max.heartbeat.interval.ms",
        "group.share.max.partition.max.record.locks",
        "group.share.max.record.lock.duration.ms",
        "group.share.max.session.timeout.ms",
        "group.share.max.share.sessions",
        "group.share.max.size",
        "group.share.min.assignment.interval.ms",
        "group.share.min.delivery.count.limit",
        "group.share.min.heartbeat.interval.ms",
        "group.share.min.partition.max.record.locks",
        "group.share.min.record.lock.duration.ms",
        "group.share.min.session.timeout.ms",
        "group.share.partition.max.record.locks",
        "group.share.record.lock.duration.ms",
        "group.share.session.timeout.ms",
        "group.streams.heartbeat.interval.ms",
        "group.streams.initial.rebalance.delay.ms",
        "group.streams.max.assignment.interval.ms",
        "group.streams.max.heartbeat.interval.ms",
        "group.streams.max.session.timeout.ms",
        "group.streams.max.size",
        "group.streams.max.standby.replicas",
        "group.streams.min.assignment.interval.ms",
        "group.streams.min.heartbeat.interval.ms",
        "group.streams.min.session.timeout.ms",
        "group.streams.num.standby.replicas",
        "group.streams.session.timeout.ms",
        "initial.broker.registration.timeout.ms",
        "inter.broker.listener.name",
        "kafka.metrics.polling.interval.secs",
        "kafka.metrics.reporters",
        "leader.imbalance.check.interval.seconds",
        "log.cleaner.enable",
        "log.dir",
        "log.dir.failure.timeout.ms",
        "log.dirs",
        "log.flush.offset.checkpoint.interval.ms",
        "log.flush.scheduler.interval.ms",
        "log.flush.start.offset.checkpoint.interval.ms",
        "log.retention.check.interval.ms",
        "log.retention.hours",
        "log.retention.minutes",
        "log.roll.hours",
        "log.roll.jitter.hours",
        "max.incremental.fetch.session.cache.slots",
        "max.request.partition.size.limit",
        "metadata.log.dir",
        "metadata.log.max.record.bytes.between.snapshots",
        "metadata.log.max.snapshot.interval.ms",
        "metadata.log.segment.bytes",
        "metadata.log.segment.ms",
        "metadata.max.idle.interval.ms",
        "metadata.max.retention.bytes",
        "metadata.max.retention.ms",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "node.id",
        "num.partitions",
        "num.replica.alter.log.dirs.threads",
        "offset.metadata.max.bytes",
        "offsets.commit.timeout.ms",
        "offsets.load.buffer.size",
        "offsets.retention.check.interval.ms",
        "offsets.retention.minutes",
        "offsets.topic.compression.codec",
        "offsets.topic.num.partitions",
        "offsets.topic.replication.factor",
        "offsets.topic.segment.bytes",
        "process.roles",
        "producer.purgatory.purge.interval.requests",
        "queued.max.request.bytes",
        "queued.max.requests",
        "quota.window.num",
        "quota.window.size.seconds",
        "remote.log.manager.copy.quota.window.num",
        "remote.log.manager.copy.quota.window.size.seconds",
        "remote.log.manager.fetch.quota.window.num",
        "remote.log.manager.fetch.quota.window.size.seconds",
        "remote.log.manager.task.interval.ms",
        "remote.log.manager.thread.pool.size",
        "remote.log.metadata.custom.metadata.max.bytes",
        "remote.log.metadata.manager.class.name",
        "remote.log.metadata.manager.class.path",
        "remote.log.metadata.manager.impl.prefix",
        "remote.log.metadata.manager.listener.name",
        "remote.log.reader.max.pending.tasks",
        "remote.log.storage.manager.class.name",
        "remote.log.storage.manager.class.path",
        "remote.log.storage.manager.impl.prefix",
        "remote.log.storage.system.enable",
        "replica.fetch.backoff.ms",
        "replica.fetch.max.bytes",
        "replica.fetch.min.bytes",
        "replica.fetch.response.max.bytes",
        "replica.fetch.wait.max.ms",
        "replica.high.watermark.checkpoint.interval.ms",
        "replica.lag.time.max.ms",
        "replica.selector.class",
        "replica.socket.receive.buffer.bytes",
        "replica.socket.timeout.ms",
        "replication.quota.window.num",
        "replication.quota.window.size.seconds",
        "request.timeout.ms",
        "sasl.client.callback.handler.class",
        "sasl.login.callback.handler.class",
        "sasl.login.class",
        "sasl.login.connect.timeout.ms",
        "sasl.login.read.timeout.ms",
        "sasl.login.retry.backoff.max.ms",
        "sasl.login.retry.backoff.ms",
        "sasl.mechanism.controller.protocol",
        "sasl.oauthbearer.assertion.algorithm",
        "sasl.oauthbearer.assertion.claim.aud",
        "sasl.oauthbearer.assertion.claim.exp.seconds",
        "sasl.oauthbearer.assertion.claim.iss",
        "sasl.oauthbearer.assertion.claim.jti.include",
        "sasl.oauthbearer.assertion.claim.nbf.seconds",
        "sasl.oauthbearer.assertion.claim.sub",
        "sasl.oauthbearer.assertion.file",
        "sasl.oauthbearer.assertion.private.key.file",
        "sasl.oauthbearer.assertion.private.key.passphrase",
        "sasl.oauthbearer.assertion.template.file",
        "sasl.oauthbearer.client.credentials.client.id",
        "sasl.oauthbearer.client.credentials.client.secret",
        "sasl.oauthbearer.clock.skew.seconds",
        "sasl.oauthbearer.expected.audience",
        "sasl.oauthbearer.expected.issuer",
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
        "sasl.oauthbearer.jwks.endpoint.url",
        "sasl.oauthbearer.jwt.retriever.class",
        "sasl.oauthbearer.jwt.validator.class",
        "sasl.oauthbearer.scope",
        "sasl.oauthbearer.scope.claim.name",
        "sasl.oauthbearer.sub.claim.name",
        "sasl.oauthbearer.token.endpoint.url",
        "sasl.server.callback.handler.class",
        "sasl.server.max.receive.size",
        "security.inter.broker.protocol",
        "security.providers",
        "share.coordinator.append.linger.ms",
        "share.coordinator.load.buffer.size",
        "share.coordinator.snapshot.update.records.per.snapshot",
        "share.coordinator.state.topic.compression.codec",
        "share.coordinator.state.topic.min.isr",
        "share.coordinator.state.topic.num.partitions",
        "share.coordinator.state.topic.replication.factor",
        "share.coordinator.state.topic.segment.bytes",
        "share.coordinator.threads",
        "share.coordinator.write.timeout.ms",
        "share.fetch.purgatory.purge.interval.requests",
        "socket.connection.setup.timeout.max.ms",
        "socket.connection.setup.timeout.ms",
        "socket.listen.backlog.size",
        "socket.receive.buffer.bytes",
        "socket.request.max.bytes",
        "socket.send.buffer.bytes",
        "ssl.allow.dn.changes",
        "ssl.allow.san.changes",
        "ssl.principal.mapping.rules",
        "telemetry.max.bytes",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        "transaction.max.timeout.ms",
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        "transaction.state.log.load.buffer.size",
        "transaction.state.log.min.isr",
        "transaction.state.log.num.partitions",
        "transaction.state.log.replication.factor",
        "transaction.state.log.segment.bytes",
        "transaction.two.phase.commit.enable",
        "transactional.id.expiration.ms",
    ]
)
"""Configs that cannot be changed while a broker runs."""
