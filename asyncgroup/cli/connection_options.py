"""The connection options of a command, by Kafka's property names: `-b`, `-X name=value`, `--config FILE`, `ASYNCGROUP_*`.

With a service URL of Pulsar the properties are those of `pulsar_options`.

A flag overrides `-X`, which overrides the file, which overrides the environment, as in kcat. Two names of one property
(`sasl.mechanism`, `sasl.mechanisms`) count as the same. The file and the environment may be shared by several programs:
properties of another kind of client (such as a producer's) are ignored there, but are an error in `-X`.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from asyncgroup.checks import check_group_id, parse_servers
from asyncgroup.cli.common import argument
from asyncgroup.config import ClientConfig
from asyncgroup.errors import ConfigError
from asyncgroup.properties.ignored import IGNORED, IGNORED_PREFIXES
from asyncgroup.properties.names import PROPERTIES, REST, SECURITY, UNSUPPORTED
from asyncgroup.properties.suggestions import close_matches

__all__ = [
    "OTHER_VARIABLES",
    "PULSAR_PREFIX",
    "ConnectionOptions",
    "GivenProperty",
    "add_connection_options",
    "connection_options",
    "is_of_kafka",
    "read_properties",
]

_log = logging.getLogger("asyncgroup.config")

PREFIX: Final = "ASYNCGROUP_"
FILE: Final = "ASYNCGROUP_CONFIG"
SERVERS: Final = "bootstrap.servers"
GROUP: Final = "group.id"
DEFAULT: Final = "default"
"""The source of what the command itself gives."""
PULSAR_PREFIX: Final = "ASYNCGROUP_PULSAR_"
"""Variables with the properties of a connection to Pulsar."""
_PULSAR: Final = ("pulsar://", "pulsar+ssl://")
_FOR_KAFKA: Final = "a broker of Kafka; pulsar:// is for consume, dlq, produce and work"

_KNOWN: Final = {*REST, *SECURITY, *UNSUPPORTED, *(name for names in PROPERTIES.values() for name in names)}
_VARIABLES: Final = {PREFIX + name.upper().replace(".", "_"): name for name in sorted(_KNOWN, reverse=True)}
"""The property of each environment variable."""

C = TypeVar("C", bound=ClientConfig)


class GivenProperty(NamedTuple):
    """A property as given: its name, its value and its source."""

    name: str
    value: str
    source: str
    """A flag, the path of a file, or an environment variable, for error messages."""
    is_shared: bool
    """Whether other programs may use the same source."""


class ConnectionOptions:
    """The properties that a command was given."""

    def __init__(self, properties: Mapping[str, GivenProperty]) -> None:
        self._properties = properties  # by `_key` of their names

    @property
    def servers(self) -> str | None:
        """The bootstrap servers; None if none were given."""
        found = self._properties.get(SERVERS)
        return found.value if found is not None and found.value.strip() else None

    @property
    def service_url(self) -> str | None:
        """The service URL, if the command connects to Pulsar; None for Kafka. Raises ConfigError for a wrong one."""
        found = self.servers
        if found is None or not found.startswith(_PULSAR):
            return None
        _check_service_url(found)
        return found

    def given(self) -> Iterator[GivenProperty]:
        """Yield the properties as they were given, without defaults, bootstrap servers and group id."""
        for key, each in self._properties.items():
            if key not in (SERVERS, GROUP) and each.source != DEFAULT:
                yield each

    def require_servers(self, parser: argparse.ArgumentParser) -> str:
        """Return the bootstrap servers; without any, exit with a usage error. Raises ConfigError for wrong ones."""
        if self.servers is None:
            parser.error(
                "-b/--bootstrap-servers is required (or bootstrap.servers in -X, in --config or in "
                "ASYNCGROUP_BOOTSTRAP_SERVERS)"
            )
        _servers(self.servers)
        return self.servers

    @property
    def group_id(self) -> str | None:
        """The group id; None if none was given. Raises ConfigError for an invalid one."""
        found = self._properties.get(GROUP)
        return None if found is None else check_group_id(found.value)

    @property
    def has_shared_group(self) -> bool:
        """Whether the group id was given by the file or the environment, which other programs may use as well."""
        found = self._properties.get(GROUP)
        return found is not None and found.is_shared

    def without_environment_servers(self) -> ConnectionOptions:
        """Return the options without bootstrap servers that were given by an environment variable."""
        found = self._properties.get(SERVERS)
        if found is None or not found.source.startswith(PREFIX):
            return self
        return ConnectionOptions({key: each for key, each in self._properties.items() if key != SERVERS})

    def properties(self, cls: type[ClientConfig]) -> dict[str, str]:
        """Return the properties for the configuration class `cls`, without bootstrap servers and group id."""
        own = {field.name for field in fields(cls)}
        foreign = {
            name for names in PROPERTIES.values() for name, prop in names.items() if prop.key not in own
        }
        found = {}
        for key, each in self._properties.items():
            if key in (SERVERS, GROUP):
                continue
            if each.is_shared and each.name in foreign:
                _log.debug("%s in %s is ignored: it is not a property of this client", each.name, each.source)
                continue
            found[each.name] = each.value
        return found

    def config(self, cls: type[C], **keys: object) -> C:
        """Return the configuration; `keys` override properties. Raises ConfigError that names the source of the value."""
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


def add_connection_options(parser: argparse.ArgumentParser, *, reads_pulsar: bool = False) -> None:
    """Add the options -b/--bootstrap-servers, -X and --config; `reads_pulsar`: of a command that also knows Pulsar."""
    parser.add_argument(
        "-b",
        "--bootstrap-servers",
        metavar="HOST:PORT",
        type=argument(_servers_or_url if reads_pulsar else _servers),
        help="a broker of the cluster, or several separated by commas"
        + ("; pulsar://HOST:PORT or pulsar+ssl://HOST:PORT for Apache Pulsar" if reads_pulsar else ""),
    )
    parser.add_argument(
        "-X",
        dest="properties",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        type=_property,
        help="a property by Kafka's name, such as security.protocol=SASL_SSL"
        + (", with a service URL of Pulsar by that of its Java client" if reads_pulsar else "")
        + "; can be repeated. Other users of this machine can see arguments: put passwords into --config or the environment",
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        help="a properties file, as for Kafka's own tools (default: $ASYNCGROUP_CONFIG). Properties can also be set in "
        "the environment, such as ASYNCGROUP_SECURITY_PROTOCOL for security.protocol; -X overrides the file, and the "
        "file the environment",
    )
    parser.set_defaults(usage=parser)


def _servers(text: str) -> str:
    if text.startswith(_PULSAR):
        raise ConfigError("bootstrap_servers", text, _FOR_KAFKA)
    parse_servers(text)
    return text


def _servers_or_url(text: str) -> str:
    if not text.startswith(_PULSAR):
        if ":/" in text and "@" not in text:  # a URL that is misspelt, without a password
            allowed = "host:port of Kafka, several separated by commas, or pulsar://host:port or pulsar+ssl://host:port"
            raise ConfigError("bootstrap_servers", text, allowed)
        return _servers(text)
    _check_service_url(text)
    return text


def _check_service_url(text: str) -> None:
    from asyncgroup.pulsar.service_url import ServiceUrl

    ServiceUrl.parse(text)


def is_of_kafka(name: str) -> bool:
    """Whether a property is one of Kafka's clients."""
    return name in _KNOWN or name in IGNORED or name.startswith(tuple(IGNORED_PREFIXES))


def _property(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        # without the text, which may be a password
        raise argparse.ArgumentTypeError("expected NAME=VALUE, such as security.protocol=SSL")
    return name.strip(), value


def connection_options(
    options: argparse.Namespace, environ: Mapping[str, str] | None = None, **defaults: str
) -> ConnectionOptions:
    """Return the options of the arguments, the file and the environment; `defaults` (`_` for a dot) have lowest priority.

    Raises ConfigError if the file cannot be read.
    """
    environ = os.environ if environ is None else environ
    properties: dict[str, GivenProperty] = {}
    _add(properties, ((name.replace("_", "."), value) for name, value in defaults.items()), DEFAULT)
    for variable, value in environ.items():
        if variable in _VARIABLES and value:
            _add(properties, [(_VARIABLES[variable], value)], variable, is_shared=True)
        elif (
            variable.startswith(PREFIX)
            and variable not in OTHER_VARIABLES
            and not variable.startswith(PULSAR_PREFIX)
            and (near := close_matches(variable, _VARIABLES))
        ):
            _log.warning("unknown environment variable %s: did you mean %s?", variable, " or ".join(near))
    file = options.config or (Path(environ[FILE]) if environ.get(FILE) else None)
    if file is not None:
        _add(properties, read_properties(file).items(), str(file), is_shared=True)
    _add(properties, options.properties, "-X")
    if options.bootstrap_servers is not None:
        _add(properties, [(SERVERS, options.bootstrap_servers)], "-b")
    return ConnectionOptions(properties)


OTHER_VARIABLES: Final = frozenset(
    {
        FILE,
        "ASYNCGROUP_CACHE",
        "ASYNCGROUP_KAFKA",
        "ASYNCGROUP_KAFKA_JARS",
        "ASYNCGROUP_PULSAR_JARS",
        "ASYNCGROUP_IVY_SETTINGS",
    }
)
"""Variables that other parts of this package use."""


def _add(
    properties: dict[str, GivenProperty],
    given: Iterable[tuple[str, str]],
    source: str,
    *,
    is_shared: bool = False,
) -> None:
    for name, value in given:
        key = _key(name)
        properties.pop(key, None)
        properties[key] = GivenProperty(name, value, source, is_shared)


def _key(name: str) -> str:
    """Return a key that is equal for all names of one property, so that a later one replaces an earlier one."""
    if name == "sasl.mechanisms":
        return "sasl.mechanism"
    if name in REST:
        return REST[name]
    return next((f"{cls}.{names[name].key}" for cls, names in PROPERTIES.items() if name in names), name)


# --- files in the format of `java.util.Properties.load` ----------------------------------------------------------------

_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_CONTROLS: Final = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}
_NAME: Final = re.compile(r"((?:\\.|[^\\\s=:])*)\s*[=:]?\s*(.*)", re.DOTALL)


def read_properties(file: Path) -> dict[str, str]:
    """Return the properties of a UTF-8 file such as Kafka's `client.properties`; of a name's values the last one counts.

    Lines are `name=value`, `name: value` or `name value`; `#` and `!` begin comments, a backslash at the end of a line
    continues it, and other backslashes escape the next character. Raises ConfigError if the file cannot be read.
    """
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(
            "--config", str(file), f"a UTF-8 text file: byte {error.start} is not valid"
        ) from None
    except OSError as error:
        raise ConfigError("--config", str(file), f"a file that can be read: {error.strerror}") from None
    found: dict[str, str] = {}
    for line in _logical_lines(text):
        matched = _NAME.fullmatch(line)
        assert matched is not None
        found[_unescaped(matched[1])] = _unescaped(matched[2])
    return found


def _logical_lines(text: str) -> Iterator[str]:
    """Yield the lines without comments and leading blanks, and join continued ones."""
    pending = ""
    for line in re.split(r"\r\n|\r|\n", text):
        rest = line.lstrip(" \t\f")
        if not pending and (not rest or rest[0] in "#!"):
            continue
        pending += rest
        if (len(pending) - len(pending.rstrip("\\"))) % 2:
            pending = pending[:-1]
            continue
        if pending:
            yield pending
        pending = ""
    if pending:
        yield pending


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(_unescape_match, text)


def _unescape_match(escape: re.Match[str]) -> str:
    escaped = escape[1]
    if len(escaped) == 5:
        return chr(int(escaped[1:], 16))
    return _CONTROLS.get(escaped, escaped)
