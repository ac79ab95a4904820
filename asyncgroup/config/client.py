"""Configuration that all clients share, and the checks of a configuration's values."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self, TypeAlias

from asyncgroup.checks import (
    BACKOFF,
    COUNT,
    DURATION,
    DURATION_OR_ZERO,
    FLAG,
    KEEPALIVE,
    OPTIONAL_DURATION,
    OPTIONAL_DURATION_OR_ZERO,
    SIZE,
    TEXT,
    Rule,
    one_of,
    seconds_hint,
    timedelta_hint,
    wrong_type,
)
from asyncgroup.errors import ConfigError

if TYPE_CHECKING:
    import socket

    from asyncgroup.properties.reader import FromProperties
    from asyncgroup.security import Security

__all__ = ["KIB", "MIB", "ClientConfig", "Connector", "HasDelay", "Pauses", "keys_by_class"]


class HasDelay(Protocol):
    """What a `Backoff` of work queues has: the delay in seconds after failure number `failures`, counted from 1."""

    def delay(self, failures: int, /) -> float: ...


Pauses: TypeAlias = float | Callable[[int], float] | HasDelay
"""Pauses before retries: a number of seconds, a function (failures) -> seconds that counts from 0, or a Backoff."""

Connector: TypeAlias = "Callable[[str, int], Awaitable[socket.socket]]"
"""Opens a TCP connection to a host and port, for example through a proxy (python-socks), and returns its socket."""

KIB = 1024
MIB = 1024 * KIB

MAX_SECONDS = 3600.0
"""The longest duration that most keys allow, in seconds: a larger number was almost certainly meant as milliseconds."""


def _none_or_security(value: object) -> bool:
    if value is None:
        return True
    from asyncgroup.security import Security

    return isinstance(value, Security)


@dataclass(frozen=True, kw_only=True)
class ClientConfig:
    """Configuration that every client of a cluster shares: connections, requests, metadata.

    - `client_id`: sent with every request; brokers show it in logs and group descriptions.
    - `connect_timeout`: seconds to establish a connection: TCP, TLS, ApiVersions and SASL together.
    - `request_timeout`: seconds to write a request and receive its response; there are no separate limits for the two.
    - `max_in_flight_requests`: requests that may wait for their responses on one connection; further ones are queued.
    - `retry_backoff`, `retry_backoff_max`: the pause after the n-th failure (0, 1, …) is `retry_backoff * 2**n`
      seconds, at most `retry_backoff_max`, with 20 % jitter (KIP-580). A group member waits at most a tenth of
      `session_timeout` before it connects again.
    - `metadata_refresh_interval`: seconds between metadata refreshes; 0 refreshes only after a failure.
    - `metadata_retry_max`: how often a metadata lookup of a connected client is retried before its error is raised; at
      the start every bootstrap server is tried once. `metadata_retry_backoff`: the pause before each retry: a
      number of seconds, a function (failures) -> seconds to wait after the n-th failure (0, 1, …), or a `Backoff`; None means
      the pause that `retry_backoff` describes. `metadata_timeout`: seconds
      for a lookup with all of its retries; None sets no limit.
    - `metadata_full`: whether metadata of all topics of the cluster is kept, or only of topics in use (the default
      here; sarama's default is all).
    - `max_response_size`: bytes; a larger response closes the connection instead of exhausting memory. A record batch
      that decompresses to more raises `CorruptRecordsError`, see `on_corrupt_batch`.
    - `connections_max_idle`: seconds after which an unused connection is closed.
    - `allow_auto_topic_creation`: whether a metadata request may create an unknown topic that is written, read or
      subscribed to, if the broker is configured for that. Look-ups (`partitions`, `end_offsets`) create none. As in
      Java, a topic that is deleted while in use is then created again, empty, by the next refresh; with False it stays
      deleted.
    - `tcp_keepalive`: seconds of silence before TCP sends keepalive probes; None turns them off.
    - `local_address`: the address of this machine to connect from.
    - `connector`: an async function (host, port) -> socket that opens each connection; it also resolves the host name.
    - `client_dns_lookup`: `use_all_dns_ips` tries every address of a name; `resolve_canonical_bootstrap_servers_only`
      also replaces each bootstrap name by the canonical names of its addresses.
    - `security`: TLS and SASL; None means plaintext.
    """

    client_id: str = "asyncgroup"
    connect_timeout: float = 10.0
    request_timeout: float = 30.0
    max_in_flight_requests: int = 5
    retry_backoff: float = 0.1
    retry_backoff_max: float = 2.0
    metadata_refresh_interval: float = 600.0
    metadata_retry_max: int = 5
    metadata_retry_backoff: Pauses | None = None
    metadata_timeout: float | None = None
    metadata_full: bool = False
    max_response_size: int = 100 * MIB
    connections_max_idle: float = 540.0
    allow_auto_topic_creation: bool = True
    tcp_keepalive: float | None = 15.0
    local_address: str | None = None
    connector: Connector | None = None
    client_dns_lookup: Literal["use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"] = (
        "use_all_dns_ips"
    )
    security: Security | None = None

    _CHECKS: ClassVar[Mapping[str, Rule]] = {
        "client_id": TEXT,
        "connect_timeout": DURATION,
        "request_timeout": DURATION,
        "max_in_flight_requests": (
            (lambda value: COUNT[0](value) and value > 0),
            "a whole number, 1 or more",
        ),
        "retry_backoff": DURATION_OR_ZERO,
        "retry_backoff_max": DURATION_OR_ZERO,
        "metadata_refresh_interval": DURATION_OR_ZERO,
        "metadata_retry_max": COUNT,
        "metadata_retry_backoff": BACKOFF,
        "metadata_timeout": OPTIONAL_DURATION,
        "metadata_full": FLAG,
        "max_response_size": SIZE,
        "connections_max_idle": DURATION,
        "allow_auto_topic_creation": FLAG,
        "tcp_keepalive": KEEPALIVE,
        "local_address": (
            (lambda value: value is None or (isinstance(value, str) and bool(value))),
            "None, or an address of this machine",
        ),
        "connector": (
            (lambda value: value is None or callable(value)),
            "None or an async function (host, port) -> socket",
        ),
        "client_dns_lookup": one_of("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"),
        "security": (_none_or_security, "None or an asyncgroup.security.Security"),
    }

    def __new__(cls, *_: Any, **keys: Any) -> Self:
        """Raise ConfigError for an unknown key, with the keys that may be meant (the TypeError of a dataclass has none)."""
        known = [field.name for field in fields(cls)]
        for key, value in keys.items():
            if key not in known:
                # imported here, because their tables of names are needed only for an error
                from asyncgroup.properties.reader import shown
                from asyncgroup.properties.suggestions import suggest_key

                allowed = suggest_key(cls.__name__, key, value, {**keys_by_class(), cls.__name__: known})
                raise ConfigError(key, shown(key, value), allowed)
        return super().__new__(cls)

    _NORMALIZERS: ClassVar[Mapping[str, Callable[[Any], Any]]] = {}
    """Of keys with several spellings: a function that returns the value to keep; it returns others unchanged."""

    def __post_init__(self) -> None:
        for key, normalize in self._NORMALIZERS.items():
            object.__setattr__(self, key, normalize(getattr(self, key)))  # the dataclass is frozen
        for cls in type(self).__mro__:
            for key, (check, allowed) in vars(cls).get("_CHECKS", {}).items():
                value = getattr(self, key)
                if not check(value):
                    if key == "security":  # a value of the wrong type may still hold a password
                        raise wrong_type(key, value, allowed)
                    raise ConfigError(key, value, allowed + timedelta_hint(value, allowed))
                if (
                    check in _DURATION_CHECKS
                    and (value or 0) > MAX_SECONDS
                    and key not in _MAY_EXCEED_MAX_SECONDS
                ):
                    raise ConfigError(
                        key, value, f"at most {MAX_SECONDS:g}{_INSTEAD.get(key) or seconds_hint(value)}"
                    )
        self._check_together()

    def _check_together(self) -> None:
        """Check rules that involve several keys; subclasses add theirs."""
        if self.retry_backoff > self.retry_backoff_max:
            limit = f"at most retry_backoff_max={self.retry_backoff_max!r}"
            raise ConfigError("retry_backoff", self.retry_backoff, limit + seconds_hint(self.retry_backoff))
        for key, default in (("local_address", None), ("client_dns_lookup", "use_all_dns_ips")):
            if self.connector is not None and getattr(self, key) != default:
                raise ConfigError(key, getattr(self, key), f"{default!r}: connector opens the sockets")

    @classmethod
    def from_properties(cls, properties: Mapping[str, object], **keys: Any) -> FromProperties[Self]:
        """Create a configuration from Kafka's property names (`asyncgroup.properties.reader`); `keys` of this class win.

            config, rest = ConsumerConfig.from_properties({"session.timeout.ms": "10000", "group.id": "orders"})

        `rest` holds the properties that are arguments here: `bootstrap.servers` and `group.id`. A property that other
        Kafka clients have and that has no effect here is logged as a warning. Raises ConfigError for an unknown
        property, an invalid value, and properties that contradict each other.
        """
        from asyncgroup.properties.reader import from_properties

        return from_properties(cls, properties, keys, keys_by_class())

    @classmethod
    def of(cls, config: object) -> Self:
        """Return the `config` argument of a constructor, or the defaults for None; raise ConfigError for other types."""
        if config is None:
            return cls()
        if not isinstance(config, cls):
            allowed = f"a {cls.__name__} or None"
            if isinstance(config, Mapping):  # it may have a password
                allowed += f"; {cls.__name__}.from_properties(…) reads properties"
                raise ConfigError("config", "[hidden]", allowed)
            if isinstance(config, ClientConfig):  # its repr would be long
                raise wrong_type("config", config, allowed)
            raise ConfigError("config", config, allowed)
        return config

    def client(self) -> dict[str, Any]:
        """Return the keys of ClientConfig alone, for another client's configuration."""
        return {field.name: getattr(self, field.name) for field in fields(ClientConfig)}


def keys_by_class() -> dict[str, frozenset[str]]:
    """Return the keys of each configuration class, by class name."""
    classes: tuple[type[ClientConfig], ...] = (ClientConfig, *ClientConfig.__subclasses__())
    return {cls.__name__: frozenset(field.name for field in fields(cls)) for cls in classes}


_DURATION_CHECKS = tuple(
    rule[0] for rule in (DURATION, DURATION_OR_ZERO, OPTIONAL_DURATION, OPTIONAL_DURATION_OR_ZERO)
)
_MAY_EXCEED_MAX_SECONDS = frozenset(
    {
        *("metadata_refresh_interval", "metadata_max_idle", "connections_max_idle", "offset_retention"),
        "tcp_keepalive",
    }
)

_INSTEAD = {
    "max_poll_interval": " seconds; for longer work call claim.renew(seconds); max_poll_interval=0 turns it off"
}
"""What to do instead of a longer duration, for keys that may be meant to be so long."""
