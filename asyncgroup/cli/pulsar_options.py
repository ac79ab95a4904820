"""The connection of a command to Pulsar: a service URL in place of bootstrap servers, and properties by the names of Java's client.

`-X operationTimeoutMs=5000`, a line in the file of `--config`, such as Pulsar's own `client.conf`, or
`ASYNCGROUP_PULSAR_OPERATION_TIMEOUT_MS` in the environment; the first one counts. Properties of the producer or consumer of a
command are given in the same way. The file and the environment may be shared: properties of Kafka's clients, and those of
producers and consumers that the command does not have, are ignored there, and are an error in `-X`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from asyncgroup.cli.connection_options import (
    OTHER_VARIABLES,
    PULSAR_PREFIX,
    ConnectionOptions,
    GivenProperty,
    is_of_kafka,
)
from asyncgroup.errors import ConfigError

if TYPE_CHECKING:
    from asyncgroup.properties.reader import FromProperties
    from asyncgroup.pulsar.config import PulsarConfig
    from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig
    from asyncgroup.pulsar.java_properties import JavaNames
    from asyncgroup.pulsar.producer.config import PulsarProducerConfig

__all__ = ["pulsar_config", "pulsar_consumer_config", "pulsar_producer_config", "pulsar_source_keys"]

C = TypeVar("C")
Environ = Mapping[str, str] | None
"""None is that of the process."""

_SERVICE_URLS: Final = ("serviceUrl", "brokerServiceUrl", "webServiceUrl")
"""Of a file that other tools use; the command has its own."""
_SOURCE_KEYS: Final = ("consumer_name", "priority_level", "durable", "index_acks")
"""Keys of a consumer that are arguments of a PulsarSource."""


def pulsar_config(given: ConnectionOptions, environ: Environ = None) -> PulsarConfig:
    """Return the configuration of the connection. Raises ConfigError that names the source of a wrong value."""
    return _client_config(_properties(given, environ))


def pulsar_producer_config(
    given: ConnectionOptions, environ: Environ = None
) -> tuple[PulsarConfig, PulsarProducerConfig]:
    """Return the configurations of the connection and of a producer. Raises ConfigError as `pulsar_config`."""
    from asyncgroup.pulsar.producer.config import PulsarProducerConfig
    from asyncgroup.pulsar.producer.producer_properties import PRODUCER_NAMES

    found = _properties(given, environ)
    own = _taken(found, PRODUCER_NAMES)
    return _client_config(found), _read(PulsarProducerConfig.from_properties, own).config


def pulsar_consumer_config(
    given: ConnectionOptions, environ: Environ = None
) -> tuple[PulsarConfig, PulsarConsumerConfig, str | None]:
    """Return the configurations of the connection and of a consumer, and the type of its subscription if it is given.

    Raises ConfigError as `pulsar_config`.
    """
    from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig
    from asyncgroup.pulsar.consumer.consumer_properties import CONSUMER_NAMES

    found = _properties(given, environ)
    own = _taken(found, CONSUMER_NAMES, "subscriptionType")
    config, rest = _read(PulsarConsumerConfig.from_properties, own)
    return _client_config(found), config, rest.get("type")


def pulsar_source_keys(
    given: ConnectionOptions, environ: Environ = None
) -> tuple[PulsarConfig, dict[str, Any]]:
    """Return the configuration of the connection, and arguments of a PulsarSource. Raises ConfigError as `pulsar_config`.

    Other properties of consumers are the queue's own.
    """
    from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig
    from asyncgroup.pulsar.consumer.consumer_properties import CONSUMER_NAMES

    found = _properties(given, environ)
    own = _taken(found, CONSUMER_NAMES)
    keys = {}
    for name, each in list(own.items()):
        prop = CONSUMER_NAMES.keys.get(name)
        if prop is None:
            continue
        if prop.key in _SOURCE_KEYS:
            keys[prop.key] = name
        elif each.is_shared:
            del own[name]
        else:
            raise ConfigError(name, each.value, f"left out: the queue decides it (given by {each.source})")
    config = _read(PulsarConsumerConfig.from_properties, own).config
    return _client_config(found), {key: getattr(config, key) for key in keys}


# --- properties -------------------------------------------------------------------------------------------------------


def _properties(given: ConnectionOptions, environ: Environ) -> dict[str, GivenProperty]:
    """Return the properties by name; those of the environment first, so that others replace them."""
    found = {}
    for variable, value in (os.environ if environ is None else environ).items():
        if variable.startswith(PULSAR_PREFIX) and variable not in OTHER_VARIABLES and value:
            name = _camel(variable.removeprefix(PULSAR_PREFIX))
            found[name] = GivenProperty(name, value, variable, is_shared=True)
    for each in given.given():
        if not (each.is_shared and (is_of_kafka(each.name) or each.name in _SERVICE_URLS)):
            found[each.name] = each
    return found


def _taken(found: dict[str, GivenProperty], names: JavaNames, *arguments: str) -> dict[str, GivenProperty]:
    """Move the properties of a producer or consumer out of `found`; of its arguments only these. Raises ConfigError."""
    own = {}
    for name in [name for name in found if name in names.all_names]:
        each = found.pop(name)
        if name not in names.arguments or name in arguments:
            own[name] = each
        elif not each.is_shared:
            raise ConfigError(
                name, each.value, f"left out: the command has options for it (given by {each.source})"
            )
    return own


def _client_config(found: Mapping[str, GivenProperty]) -> PulsarConfig:
    from asyncgroup.properties.reader import shown
    from asyncgroup.properties.suggestions import close_matches
    from asyncgroup.pulsar.client_properties import CLIENT_NAMES
    from asyncgroup.pulsar.config import PulsarConfig
    from asyncgroup.pulsar.consumer.consumer_properties import CONSUMER_NAMES
    from asyncgroup.pulsar.producer.producer_properties import PRODUCER_NAMES

    foreign = {*CONSUMER_NAMES.all_names, *PRODUCER_NAMES.all_names} - set(CLIENT_NAMES)
    own = {name: each for name, each in found.items() if not (each.is_shared and name in foreign)}
    for name, each in own.items():
        if name not in {*CLIENT_NAMES, *foreign} and (near := close_matches(name, (*CLIENT_NAMES, *foreign))):
            allowed = f"there is no such key; did you mean {' or '.join(near)}? (given by {each.source})"
            raise ConfigError(name, shown(name, each.value), allowed)
    if (params := own.get("authParams")) is not None and params.value.startswith("file:"):
        _check_file(params)
    return _read(PulsarConfig.from_properties, own).config


def _check_file(given: GivenProperty) -> None:
    """Raise ConfigError for a file that is missing: the client tries again until its timeout, and it is probably a typo."""
    if not Path(given.value.removeprefix("file:")).is_file():
        raise ConfigError(given.name, given.value, f"a file that exists (given by {given.source})")


def _read(
    read: Callable[[Mapping[str, object]], FromProperties[C]], found: Mapping[str, GivenProperty]
) -> FromProperties[C]:
    try:
        return read({name: each.value for name, each in found.items()})
    except ConfigError as error:
        source = found.get(error.key)
        if source is None or error.allowed is None:
            raise
        raise ConfigError(error.key, error.value, f"{error.allowed} (given by {source.source})") from None


def _camel(name: str) -> str:
    """Return `OPERATION_TIMEOUT_MS` as `operationTimeoutMs`."""
    first, *others = name.lower().split("_")
    return first + "".join(map(str.capitalize, others))
