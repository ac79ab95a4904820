"""How a command connects: `-b`, `-X name=value`, `--config FILE` and `ASYNCGROUP_*`, in Kafka's property names.

A flag wins over `-X`, that over the file, and that over the environment, as kcat has it. Two names of one property
(`sasl.mechanism`, `sasl.mechanisms`) count as the same. The file and the environment may serve several programs: what is
another client's is left out there, and an error in `-X`.
"""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from asyncgroup.checks import check_group_id, parse_servers
from asyncgroup.cli.common import argument
from asyncgroup.cli.properties_file import read_properties
from asyncgroup.config import ClientConfig
from asyncgroup.errors import ConfigError
from asyncgroup.property_names import BY_CLASS, REFUSED, REST, SECURITY
from asyncgroup.suggestions import typos

__all__ = ["ConnectionOptions", "add_connection_options", "connection_options"]

_log = logging.getLogger("asyncgroup.config")

PREFIX: Final = "ASYNCGROUP_"
FILE: Final = "ASYNCGROUP_CONFIG"
SERVERS: Final = "bootstrap.servers"
GROUP: Final = "group.id"

_KNOWN: Final = {*REST, *SECURITY, *REFUSED, *(name for names in BY_CLASS.values() for name in names)}
_VARIABLES: Final = {PREFIX + name.upper().replace(".", "_"): name for name in sorted(_KNOWN, reverse=True)}
"""Property by environment variable."""

C = TypeVar("C", bound=ClientConfig)


class _Property(NamedTuple):
    """A property as it was given: its name, its value, and where."""

    name: str
    value: str
    source: str
    is_shared: bool
    """Whether other programs may read it there too."""


class ConnectionOptions:
    """What a command was given to connect with."""

    def __init__(self, properties: Mapping[str, _Property]) -> None:
        self._properties = properties

    @property
    def servers(self) -> str | None:
        """The bootstrap servers; None if none were given."""
        found = self._properties.get(SERVERS)
        return found.value if found is not None and found.value.strip() else None

    def require_servers(self, parser: argparse.ArgumentParser) -> str:
        """The bootstrap servers; ends the program with a usage error if none were given. Raises ConfigError."""
        if self.servers is None:
            parser.error(
                "-b/--bootstrap-servers is needed (or bootstrap.servers by -X, --config or "
                "ASYNCGROUP_BOOTSTRAP_SERVERS)"
            )
        parse_servers(self.servers)
        return self.servers

    @property
    def group_id(self) -> str | None:
        """The group; None if none was given. Raises ConfigError for one that cannot be."""
        found = self._properties.get(GROUP)
        return None if found is None else check_group_id(found.value)

    def without_environment_servers(self) -> ConnectionOptions:
        """Leave out servers of the environment: for a command that goes to a cluster only if its own arguments ask for it."""
        found = self._properties.get(SERVERS)
        if found is None or not found.source.startswith(PREFIX):
            return self
        return ConnectionOptions({key: each for key, each in self._properties.items() if key != SERVERS})

    def properties(self, cls: type[ClientConfig]) -> dict[str, str]:
        """Return the properties for `cls`, without servers and group."""
        own = {field.name for field in fields(cls)}
        foreign = {name for names in BY_CLASS.values() for name, prop in names.items() if prop.key not in own}
        found = {}
        for key, each in self._properties.items():
            if key in (SERVERS, GROUP):
                continue
            if each.is_shared and each.name in foreign:
                _log.debug("%s of %s is another client's", each.name, each.source)
                continue
            found[each.name] = each.value
        return found

    def config(self, cls: type[C], **keys: object) -> C:
        """Return the configuration; `keys` are ours, and win. Raises ConfigError that says where the value came from."""
        source = {each.name: each.source for each in self._properties.values()}
        try:
            return cls.from_properties(self.properties(cls), **keys).config
        except ConfigError as error:
            if error.key not in source or error.allowed is None:
                raise
            raise ConfigError(
                error.key, error.value, f"{error.allowed} (given by {source[error.key]})"
            ) from None


# --- arguments --------------------------------------------------------------------------------------------------------


def add_connection_options(parser: argparse.ArgumentParser) -> None:
    """Add -b/--bootstrap-servers, -X and --config."""
    parser.add_argument(
        "-b",
        "--bootstrap-servers",
        metavar="HOST:PORT",
        type=argument(_servers),
        help="a broker of the cluster, or several separated by commas",
    )
    parser.add_argument(
        "-X",
        dest="properties",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        type=_property,
        help="a property by Kafka's name, such as security.protocol=SASL_SSL; may be given several times. Other users "
        "of this machine can see arguments: passwords belong into --config or the environment",
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        help="a file of such properties, as Kafka's own tools take (default: that of $ASYNCGROUP_CONFIG). The "
        "environment has them too, as ASYNCGROUP_SECURITY_PROTOCOL for security.protocol; -X wins over the file, and "
        "the file over the environment",
    )
    parser.set_defaults(usage=parser)


def _servers(text: str) -> str:
    parse_servers(text)
    return text


def _property(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        # not the text itself: it may be a password
        raise argparse.ArgumentTypeError("NAME=VALUE is wanted, such as security.protocol=SSL")
    return name.strip(), value


def connection_options(
    options: argparse.Namespace, environ: Mapping[str, str] | None = None, **defaults: str
) -> ConnectionOptions:
    """Return what the arguments, the file and the environment say; `defaults` (`_` for a dot) hold where they are silent.

    Raises ConfigError for a file that cannot be read.
    """
    environ = os.environ if environ is None else environ
    properties: dict[str, _Property] = {}
    _add(properties, ((name.replace("_", "."), value) for name, value in defaults.items()), "default")
    for variable, value in environ.items():
        if variable in _VARIABLES and value:
            _add(properties, [(_VARIABLES[variable], value)], variable, is_shared=True)
        elif (
            variable.startswith(PREFIX)
            and variable not in _OTHER_VARIABLES
            and (near := typos(variable, _VARIABLES))
        ):
            _log.warning("the environment's %s is not known; did you mean %s?", variable, " or ".join(near))
    file = options.config or (Path(environ[FILE]) if environ.get(FILE) else None)
    if file is not None:
        _add(properties, read_properties(file).items(), str(file), is_shared=True)
    _add(properties, options.properties, "-X")
    if options.bootstrap_servers is not None:
        _add(properties, [(SERVERS, options.bootstrap_servers)], "-b")
    return ConnectionOptions(properties)


_OTHER_VARIABLES: Final = frozenset(
    {FILE, "ASYNCGROUP_CACHE", "ASYNCGROUP_KAFKA", "ASYNCGROUP_KAFKA_JARS", "ASYNCGROUP_IVY_SETTINGS"}
)
"""Variables of other parts of this package."""


def _add(
    properties: dict[str, _Property],
    given: Iterable[tuple[str, str]],
    source: str,
    *,
    is_shared: bool = False,
) -> None:
    for name, value in given:
        key = _key(name)
        properties.pop(key, None)
        properties[key] = _Property(name, value, source, is_shared)


def _key(name: str) -> str:
    """The same for two names of one property, so that one given later takes the other's place."""
    if name == "sasl.mechanisms":
        return "sasl.mechanism"
    if name in REST:
        return REST[name]
    return next((f"{cls}.{names[name].key}" for cls, names in BY_CLASS.items() if name in names), name)
