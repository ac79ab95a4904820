"""PulsarConfig: configuration that all producers and consumers of a client share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from asyncgroup.checks import (
    COUNT,
    DURATION,
    DURATION_OR_ZERO,
    KEEPALIVE,
    SIZE,
    Rule,
    seconds_hint,
    timedelta_hint,
    wrong_type,
)
from asyncgroup.config import Connector
from asyncgroup.config.client import MAX_SECONDS
from asyncgroup.errors import ConfigError
from asyncgroup.pulsar.wire.varint import is_encodable
from asyncgroup.security import Tls

if TYPE_CHECKING:
    from asyncgroup.properties.reader import FromProperties
    from asyncgroup.pulsar.authentication import PulsarAuthentication

__all__ = ["KnownKeys", "PulsarConfig"]

_MIB: Final = 1 << 20


_POSITIVE: Final[Rule] = ((lambda value: COUNT[0](value) and value > 0), "a whole number, 1 or more")


def _text_or_none(value: object) -> bool:
    return value is None or (isinstance(value, str) and bool(value) and is_encodable(value))


class KnownKeys:
    """Base of configurations: an unknown key is a ConfigError with the key that may be meant (a dataclass raises TypeError).

    A separate class: `inspect.signature` of a class that defines `__new__` itself is not that of its keys.
    """

    def __new__(cls, *_: Any, **keys: Any) -> Self:
        """Raise ConfigError for an unknown key."""
        known = tuple(field.name for field in fields(cls))  # type: ignore[arg-type]  # subclasses are dataclasses
        for key, value in keys.items():
            if key not in known:
                from asyncgroup.properties.reader import shown

                raise ConfigError(key, shown(key, value), cls._suggest(key, known))
        return super().__new__(cls)

    @classmethod
    def _suggest(cls, key: str, known: tuple[str, ...]) -> str:
        """Return the text that suggests a replacement for an unknown key."""
        raise NotImplementedError

    @classmethod
    def of(cls, config: object) -> Self:
        """Return the `config` argument of a constructor, or the defaults for None; raise ConfigError for other types."""
        if config is None:
            return cls()
        if not isinstance(config, cls):
            allowed = f"a {cls.__name__} or None"
            if isinstance(config, Mapping):  # it may have a password
                raise ConfigError(
                    "config", "[hidden]", f"{allowed}; {cls.__name__}.from_properties(…) reads properties"
                )
            raise wrong_type("config", config, allowed)
        return config


@dataclass(frozen=True, kw_only=True)
class PulsarConfig(KnownKeys):
    """Configuration of a Pulsar client. Durations are in seconds, sizes in bytes; the defaults are those of Java's client.

    - `connect_timeout`: to establish a connection: TCP, TLS and CONNECT together.
    - `operation_timeout`: to create a producer or a consumer, to look up a topic, and for each other request.
    - `keep_alive_interval`: a connection without traffic for this time is asked for an answer, and closed if there is none
      for the same time again.
    - `connections_per_broker`: connections that the producers and consumers of a client share per broker.
    - `connections_max_idle`: after this time a connection without producers and consumers is closed.
    - `retry_backoff`, `retry_backoff_max`: the pause after the first failure, and the largest; it doubles between them.
    - `max_lookup_requests`: lookups that run at the same time; others wait.
    - `max_lookup_redirects`: how often brokers may refer a lookup to another one.
    - `max_rejected_requests`: requests within a minute that a broker may refuse as too many, or leave without an answer;
      then its connection is closed, as the next one may reach another broker.
    - `memory_limit`: bytes of the messages that the client's producers have not been acknowledged.
    - `partitions_update_interval`: after this time a topic's number of partitions is asked for again.
    - `max_message_size`: bytes; a larger message that arrives, uncompressed, is refused instead of exhausting memory.
    - `listener_name`: the brokers' advertised listener to connect to (PIP-61).
    - `tls`: for `pulsar+ssl://`; by default the system's certificate authorities are trusted.
    - `authentication`: TokenAuthentication, BasicAuthentication, TlsAuthentication; None without.
    - `connector`: an async function (host, port) -> socket that opens each connection.
    - `local_address`: the address of this machine to connect from.
    - `tcp_keepalive`: seconds of silence before TCP sends keepalive probes; None turns them off.
    """

    connect_timeout: float = 10.0
    operation_timeout: float = 30.0
    keep_alive_interval: float = 30.0
    connections_per_broker: int = 1
    connections_max_idle: float = 60.0
    retry_backoff: float = 0.1
    retry_backoff_max: float = 60.0
    max_lookup_requests: int = 5000
    max_lookup_redirects: int = 20
    max_rejected_requests: int = 50
    memory_limit: int = 64 * _MIB
    partitions_update_interval: float = 60.0
    max_message_size: int = 100 * _MIB
    listener_name: str | None = None
    tls: Tls | None = None
    authentication: PulsarAuthentication | None = None
    connector: Connector | None = None
    local_address: str | None = None
    tcp_keepalive: float | None = 15.0

    _CHECKS: ClassVar[Mapping[str, Rule]] = {
        "connect_timeout": DURATION,
        "operation_timeout": DURATION,
        "keep_alive_interval": DURATION,
        "connections_per_broker": _POSITIVE,
        "connections_max_idle": DURATION,
        "retry_backoff": DURATION,
        "retry_backoff_max": DURATION,
        "max_lookup_requests": _POSITIVE,
        "max_lookup_redirects": COUNT,
        "max_rejected_requests": _POSITIVE,
        "memory_limit": (_POSITIVE[0], "a whole number of bytes, 1 or more"),
        "partitions_update_interval": DURATION_OR_ZERO,
        "max_message_size": SIZE,
        "listener_name": (_text_or_none, "None or a string, not empty"),
        "tls": (lambda value: value is None or isinstance(value, Tls), "None or a Tls"),
        "authentication": (
            lambda value: (
                value is None or (hasattr(value, "method") and callable(getattr(value, "credential", None)))
            ),
            "None, TokenAuthentication, BasicAuthentication or TlsAuthentication",
        ),
        "connector": (
            lambda value: value is None or callable(value),
            "None or an async function (host, port)",
        ),
        "local_address": (_text_or_none, "None or an address"),
        "tcp_keepalive": KEEPALIVE,
    }

    @classmethod
    def _suggest(cls, key: str, known: tuple[str, ...]) -> str:
        # imported here, because its tables of names are needed only for an error
        from asyncgroup.pulsar.client_properties import suggest_client_key

        return suggest_client_key(key, known)

    def __post_init__(self) -> None:
        for key, (is_allowed, allowed) in self._CHECKS.items():
            value = getattr(self, key)
            if not is_allowed(value):
                if key in ("tls", "authentication"):  # a value of the wrong type may hold a password
                    raise wrong_type(key, value, allowed)
                raise ConfigError(key, value, allowed + timedelta_hint(value, allowed))
            if is_allowed is DURATION[0] and value > MAX_SECONDS:
                raise ConfigError(key, value, f"at most {MAX_SECONDS:g}{seconds_hint(value)}")
        if self.retry_backoff_max < self.retry_backoff:
            raise ConfigError(
                "retry_backoff_max", self.retry_backoff_max, f"{self.retry_backoff} (retry_backoff) or more"
            )
        if self.connector is not None and self.local_address is not None:
            raise ConfigError("local_address", self.local_address, "None: connector opens the sockets")
        if getattr(self.authentication, "method", None) == "tls" and not _has_certificate(self.tls):
            raise ConfigError("authentication", "TlsAuthentication()", "together with tls=Tls(cert_file=…)")

    @classmethod
    def from_properties(cls, properties: Mapping[str, object], **keys: Any) -> FromProperties[Self]:
        """Create a configuration from the names of Java's client (`asyncgroup.pulsar.client_properties`); `keys` win.

            config, rest = PulsarConfig.from_properties({"serviceUrl": "pulsar://broker:6650", "operationTimeoutMs": 10000})

        `rest` has `service_url`, the argument of PulsarClient. The certificate of a broker must match its host name unless
        `tlsHostnameVerificationEnable` is false, which is Java's default. A name that has no effect here is logged as a
        warning. Raises ConfigError for an unknown name, an invalid value, and values that contradict each other.
        """
        from asyncgroup.pulsar.client_properties import read_client_properties

        return read_client_properties(cls, properties, keys, tuple(field.name for field in fields(cls)))


def _has_certificate(tls: Tls | None) -> bool:
    return tls is not None and any(part is not None for part in (tls.cert_file, tls.cert_data, tls.context))
