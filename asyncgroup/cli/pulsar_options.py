"""The connection of a command to Pulsar: a service URL in place of bootstrap servers, and properties by the names of Java's client.

`-X operationTimeoutMs=5000`, a line in the file of `--config`, such as Pulsar's own `client.conf`, or
`ASYNCGROUP_PULSAR_OPERATION_TIMEOUT_MS` in the environment; the first one counts. Properties of Kafka's clients in the file are
ignored.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from asyncgroup.cli.connection_options import (
    OTHER_VARIABLES,
    PULSAR_PREFIX,
    ConnectionOptions,
    GivenProperty,
    is_of_kafka,
)
from asyncgroup.errors import ConfigError

if TYPE_CHECKING:
    from asyncgroup.pulsar.config import PulsarConfig

__all__ = ["pulsar_config"]

_SERVICE_URLS: Final = ("serviceUrl", "brokerServiceUrl", "webServiceUrl")
"""Of a file that other tools use; the command has its own."""


def pulsar_config(given: ConnectionOptions, environ: Mapping[str, str] | None = None) -> PulsarConfig:
    """Return the configuration of the connection. Raises ConfigError that names the source of a wrong value."""
    from asyncgroup.pulsar.config import PulsarConfig

    found = _properties(given, os.environ if environ is None else environ)
    try:
        return PulsarConfig.from_properties({name: each.value for name, each in found.items()}).config
    except ConfigError as error:
        source = found.get(error.key)
        if source is None or error.allowed is None:
            raise
        raise ConfigError(error.key, error.value, f"{error.allowed} (given by {source.source})") from None


def _properties(given: ConnectionOptions, environ: Mapping[str, str]) -> dict[str, GivenProperty]:
    """Return the properties by name; those of the environment first, so that others replace them."""
    found = {}
    for variable, value in environ.items():
        if variable.startswith(PULSAR_PREFIX) and variable not in OTHER_VARIABLES and value:
            name = _camel(variable.removeprefix(PULSAR_PREFIX))
            found[name] = GivenProperty(name, value, variable, is_shared=True)
    for each in given.given():
        if not (each.is_shared and (is_of_kafka(each.name) or each.name in _SERVICE_URLS)):
            found[each.name] = each
    return found


def _camel(name: str) -> str:
    """Return `OPERATION_TIMEOUT_MS` as `operationTimeoutMs`."""
    first, *others = name.lower().split("_")
    return first + "".join(map(str.capitalize, others))
