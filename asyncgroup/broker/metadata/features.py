"""The features of the cluster with their levels (KIP-584), as Kafka's `BrokerFeatures` and `FeatureControlManager`.

`group.version` 1 tells clients that they may use the consumer protocol (KIP-848), `transaction.version` 2 that they use
KIP-890; both can be changed. The levels of the others are fixed: `eligible.leader.replicas.version` decides who may set
`min.insync.replicas` (see `config_repository`), `metadata.version` and `kraft.version` have no meaning here. Kafka also has
`share.version` and `streams.version`, for groups that this broker does not support.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final, NamedTuple

from asyncgroup.errors import ConfigError

__all__ = ["DEFAULT_LEVELS", "SUPPORTED_FEATURES", "ClusterFeatures", "FeatureChange", "UpgradeType"]

SUPPORTED_FEATURES: Final[dict[str, tuple[int, int]]] = {
    "eligible.leader.replicas.version": (0, 1),
    "group.version": (0, 1),
    "kraft.version": (0, 1),
    "metadata.version": (7, 30),
    "transaction.version": (0, 2),
}
"""The lowest and highest level of each feature in Kafka 4.3."""

DEFAULT_LEVELS: Final = {
    "eligible.leader.replicas.version": 1,
    "group.version": 1,
    "kraft.version": 0,
    "metadata.version": 30,
    "transaction.version": 2,
}
"""The levels of a new cluster of Kafka 4.3. A feature at level 0 is not in use, and not listed as finalized."""

_CHANGEABLE: Final = frozenset({"group.version", "transaction.version"})


class UpgradeType(IntEnum):
    """What a change of a level may be (`FeatureUpdate.UpgradeType`)."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class FeatureChange(NamedTuple):
    """A requested level; `upgrade_type` is an `UpgradeType`, or unknown."""

    feature: str
    level: int
    upgrade_type: int


class ClusterFeatures:
    """The levels of the cluster's features; `given` are those that differ from the defaults.

    `epoch` grows with each change (Kafka's is the offset of the metadata log), over restarts too: clients ignore levels with
    a lower one. Raise ConfigError for a level that is not supported.
    """

    def __init__(self, given: Mapping[str, int] | None = None) -> None:
        for name, level in (given or {}).items():
            low, high = SUPPORTED_FEATURES[name]
            if isinstance(level, bool) or not isinstance(level, int) or not low <= level <= high:
                raise ConfigError(name.replace(".", "_"), level, f"a level of {name} from {low} to {high}")
        self._given = dict(given or {})
        self.changed: dict[str, int] = {}
        """The levels that were changed since the cluster was created; they override the given ones."""
        self.epoch = 1

    def __repr__(self) -> str:
        levels = " ".join(f"{name}={level}" for name, level in self.finalized.items())
        return f"<ClusterFeatures {levels}>"

    def level(self, name: str) -> int:
        """Return the level of a feature."""
        return self.changed.get(name, self._given.get(name, DEFAULT_LEVELS[name]))

    @property
    def finalized(self) -> dict[str, int]:
        """The features in use with their levels."""
        levels = {name: self.level(name) for name in SUPPORTED_FEATURES}
        return {name: level for name, level in levels.items() if level}

    def change(self, levels: Mapping[str, int]) -> None:
        """Change levels; `problem` must have passed."""
        self.changed.update(levels)
        self.epoch += 1

    def restore(self, levels: Mapping[str, int], epoch: int | None) -> None:
        """Restore the changed levels and their epoch; None: they were stored without one."""
        self.changed.update(levels)
        self.epoch = self.epoch + 1 if epoch is None else epoch

    def problem(self, change: FeatureChange) -> str:
        """Return why the change is refused, "" if it is allowed (`FeatureControlManager.updateFeature`)."""
        name, level, upgrade_type = change
        if upgrade_type not in tuple(UpgradeType):
            return "The controller does not support the given upgrade type."
        if level < 0:
            return "A feature version cannot be less than 0."
        if name not in SUPPORTED_FEATURES:
            return f"Feature {name} not found."
        low, high = SUPPORTED_FEATURES[name]
        if not low <= level <= high:
            return f"This cluster only supports versions {low}-{high}."
        now = self.level(name)
        if level < now and upgrade_type == UpgradeType.UPGRADE:
            return "A lower version needs the upgrade type of a safe or unsafe downgrade."
        if level > now and upgrade_type != UpgradeType.UPGRADE:
            return "Can't downgrade to a newer version."
        if level != now and name not in _CHANGEABLE:
            return f"This broker does not change the version of this feature, which is {now}."
        return ""
