"""Dynamic group configs with the types, defaults and limits of Kafka 4.3 (`GroupConfig`)."""

from __future__ import annotations

from typing import Final, NamedTuple

from asyncgroup.broker.log.topic_config_keys import ConfigKey, ConfigType

__all__ = ["GROUP_CONFIG_KEYS", "GroupConfigKey"]


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


def _group_keys() -> dict[str, GroupConfigKey]:
    found = {}
    for line in _GROUP.strip().splitlines():
        facts, _, documentation = line.partition("|")
        name, kind, default, *numbers = facts.split(" ")
        least, low, high = [None if number == "-" else int(number) for number in numbers]
        found[name] = GroupConfigKey(ConfigKey(default, ConfigType[kind], least), low, high, documentation)
    return found


GROUP_CONFIG_KEYS: Final[dict[str, GroupConfigKey]] = _group_keys()
"""The group configs, by name."""
