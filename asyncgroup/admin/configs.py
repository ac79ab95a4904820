"""Configurations of topics, brokers and groups: what they are and where they come from, and changes of single ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from asyncgroup.admin.arguments import check_text, several
from asyncgroup.checks import TEXT, check_group_id, check_topic, wrong_type
from asyncgroup.cluster.client import ClusterClient
from asyncgroup.cluster.requests import configs
from asyncgroup.cluster.requests.actions import ErrorTable, RequestAction
from asyncgroup.cluster.requests.budget import RequestBudget
from asyncgroup.cluster.requests.configs import BROKER, GROUP, TOPIC, ConfigChange, ConfigResource
from asyncgroup.cluster.requests.results import Results
from asyncgroup.errors import ConfigError, ErrorCode
from asyncgroup.net.backoff import RetryLoop
from asyncgroup.secret import HIDDEN

__all__ = [
    "ConfigChanges",
    "ConfigDescription",
    "Kind",
    "SynonymDescription",
    "alter_configs",
    "checked_changes",
    "checked_resources",
    "describe_configs",
]

Kind: TypeAlias = Literal["topic", "broker", "group"]

_KINDS: Final = {"topic": TOPIC, "broker": BROKER, "group": GROUP}

SOURCES: Final = {
    1: "DYNAMIC_TOPIC_CONFIG",
    2: "DYNAMIC_BROKER_CONFIG",
    3: "DYNAMIC_DEFAULT_BROKER_CONFIG",
    4: "STATIC_BROKER_CONFIG",
    5: "DEFAULT_CONFIG",
    6: "DYNAMIC_BROKER_LOGGER_CONFIG",
    7: "DYNAMIC_CLIENT_METRICS_CONFIG",
    8: "DYNAMIC_GROUP_CONFIG",
}
"""`ConfigEntry.ConfigSource` in Kafka, by the number in DescribeConfigs."""

_SET, _DELETE, _APPEND, _SUBTRACT = range(4)

_NO_SUCH_TOPIC: Final[ErrorTable] = {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: RequestAction.FAIL}


@dataclass(frozen=True, slots=True)
class SynonymDescription:
    """A place where a configuration is set."""

    name: str
    """The name that it has there: that of a topic's configuration differs from the broker's."""
    value: str | None = field(repr=False)
    """Its value there; None for a secret."""
    source: str
    """See `ConfigDescription`."""


@dataclass(frozen=True, slots=True)
class ConfigDescription:
    """A configuration of a topic, a broker or a group."""

    name: str
    """Kafka's name."""
    value: str | None = field(repr=False)
    """Its value; None for a secret, and for one without a value."""
    source: str
    """Where the value comes from, by Kafka's names: `DYNAMIC_TOPIC_CONFIG`, `DEFAULT_CONFIG`, …; else `UNKNOWN`."""
    is_sensitive: bool
    """Whether it is a secret, which is never shown."""
    is_read_only: bool
    """Whether it cannot be altered while the broker runs."""
    synonyms: tuple[SynonymDescription, ...] = ()
    """All places where it is set, the one that counts first."""


@dataclass(frozen=True, slots=True)
class ConfigChanges:
    """Changes of single configurations by Kafka's names; all others stay as they are."""

    set: Mapping[str, str] = field(default_factory=dict, repr=False)
    """New values."""
    delete: Collection[str] = ()
    """Names that get their default again."""
    append: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Elements to add to lists, several separated by commas."""
    subtract: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Elements to remove from lists, several separated by commas."""


# --- checks -----------------------------------------------------------------------------------------------------------


def checked_resources(kind: Kind, names: str | int | Iterable[str | int]) -> list[ConfigResource]:
    """Return the resources with these names. Raises ConfigError for an unknown kind and for invalid names."""
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ConfigError("kind", kind, "one of topic, broker, group")
    return [_resource(kind, name) for name in several("names", names)]


def _resource(kind: Kind, name: object) -> ConfigResource:
    if kind == "topic":
        return ConfigResource(TOPIC, check_topic(name))
    if kind == "group":
        return ConfigResource(GROUP, check_group_id(name))
    text = str(name)
    if isinstance(name, bool) or not (text.isascii() and text.isdigit()):
        raise ConfigError("broker", name, "a node id, a whole number, 0 or more")
    return ConfigResource(BROKER, str(int(text)))


def checked_changes(
    kind: Kind, wanted: Mapping[str, ConfigChanges] | Mapping[int, ConfigChanges]
) -> dict[ConfigResource, list[ConfigChange]]:
    """Return the changes of each resource. Raises ConfigError as `checked_resources`, and for wrong changes."""
    if not isinstance(wanted, Mapping):
        raise wrong_type("wanted", wanted, "a mapping from each name to its ConfigChanges")
    resources = checked_resources(kind, list(wanted))
    return {
        resource: _changes(resource, each) for resource, each in zip(resources, wanted.values(), strict=True)
    }


def _changes(resource: ConfigResource, wanted: object) -> list[ConfigChange]:
    if not isinstance(wanted, ConfigChanges):
        raise wrong_type(f"the changes of {resource}", wanted, "ConfigChanges")
    if isinstance(wanted.delete, str):
        raise wrong_type(f"delete of {resource}", wanted.delete, "several names")
    changes = [ConfigChange(name, _DELETE, None) for name in wanted.delete]
    valued = ((_SET, wanted.set), (_APPEND, wanted.append), (_SUBTRACT, wanted.subtract))
    for operation, values in valued:
        changes += [ConfigChange(name, operation, value) for name, value in values.items()]
    seen: set[str] = set()
    for name, operation, value in changes:
        check_text(f"a configuration of {resource}", name, "Kafka's name, as text")
        if name in seen:
            raise ConfigError(f"a configuration of {resource}", name, "one change of each name")
        if operation != _DELETE and not isinstance(value, str):
            raise wrong_type(f"{name} of {resource}", value, "a value as text")
        if value is not None and not TEXT[0](value):  # it may be a secret
            raise ConfigError(f"{name} of {resource}", HIDDEN, TEXT[1])
        seen.add(name)
    if not changes:
        raise ConfigError(f"the changes of {resource}", wanted, "one change or more")
    return changes


# --- requests ---------------------------------------------------------------------------------------------------------


async def describe_configs(
    cluster: ClusterClient,
    resources: Collection[ConfigResource],
    keys: Collection[str] | None,
    budget: RequestBudget,
) -> Results[str, dict[str, ConfigDescription]]:
    """Return the configurations of each resource by name; a broker that does not answer delays the others by `NODE_TIMEOUT`."""
    retry = budget.node_retry() if any(each.kind == BROKER for each in resources) else budget.retry()
    found = await configs.describe_all_configs(cluster, resources, keys, retry=retry, table=_NO_SUCH_TOPIC)
    values = {
        resource.name: {each.name: _entry(each) for each in described}
        for resource, described in found.values.items()
    }
    return Results(values, {resource.name: error for resource, error in found.errors.items()})


def _entry(found: configs.DescribedConfig) -> ConfigDescription:
    secret = found.is_sensitive  # a broker sends no value; one that did would show it in every print
    synonyms = tuple(
        SynonymDescription(each.name, None if secret else each.value, _source(each.source))
        for each in found.synonyms
    )
    value = None if secret else found.value
    return ConfigDescription(
        found.name, value, _source(found.config_source), secret, found.read_only, synonyms
    )


def _source(number: int) -> str:
    return SOURCES.get(number, "UNKNOWN")


async def alter_configs(
    cluster: ClusterClient,
    wanted: Mapping[ConfigResource, list[ConfigChange]],
    retry: RetryLoop,
    *,
    validate_only: bool,
) -> Results[str, None]:
    """Change single configurations."""
    found = await configs.alter_configs(
        cluster, wanted, validate_only=validate_only, retry=retry, table=_NO_SUCH_TOPIC
    )
    values = {resource.name: None for resource in found.values}
    return Results(values, {resource.name: error for resource, error in found.errors.items()})
