"""PulsarConfig from the names of Java's client (`ClientConfigurationData`), and of the file `client.conf` of its tools.

    config, rest = PulsarConfig.from_properties({"serviceUrl": "pulsar://broker:6650", "operationTimeoutMs": "10000"})

Each name stands for a key, for an argument of PulsarClient, for something that has no effect here, or for a feature that
this client lacks: then the values that would turn it on are errors.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from asyncgroup.checks import wrong_type
from asyncgroup.errors import ConfigError, ConnectError
from asyncgroup.properties.names import Property
from asyncgroup.properties.reader import FromProperties, shown
from asyncgroup.properties.suggestions import close_matches
from asyncgroup.pulsar.authentication import (
    BasicAuthentication,
    PulsarAuthentication,
    TlsAuthentication,
    TokenAuthentication,
)
from asyncgroup.pulsar.java_properties import in_seconds, read_flag, read_property, read_text, read_whole
from asyncgroup.secret import HIDDEN
from asyncgroup.security import Tls

__all__ = ["CLIENT_NAMES", "read_client_properties", "suggest_client_key"]

_log = logging.getLogger("asyncgroup.config")

C = TypeVar("C")

_NO_SUCH_KEY: Final = "there is no such key"


_milliseconds = in_seconds(1000)
_nanoseconds = in_seconds(10**9)
_seconds = in_seconds(1)


# --- names ------------------------------------------------------------------------------------------------------------

_KEYS: Final[Mapping[str, Property]] = {
    "operationTimeoutMs": Property("operation_timeout", _milliseconds),
    "connectionTimeoutMs": Property("connect_timeout", _milliseconds),
    "keepAliveIntervalSeconds": Property("keep_alive_interval", _seconds),
    "connectionsPerBroker": Property("connections_per_broker", read_whole),
    "connectionMaxIdleSeconds": Property("connections_max_idle", _seconds),
    "memoryLimitBytes": Property("memory_limit", read_whole),
    "initialBackoffIntervalNanos": Property("retry_backoff", _nanoseconds),
    "maxBackoffIntervalNanos": Property("retry_backoff_max", _nanoseconds),
    "concurrentLookupRequest": Property("max_lookup_requests", read_whole),
    "maxLookupRedirects": Property("max_lookup_redirects", read_whole),
    "maxNumberOfRejectedRequestPerConnection": Property("max_rejected_requests", read_whole),
    "listenerName": Property("listener_name", read_text),
}

_TLS: Final[Mapping[str, Property]] = {
    "tlsTrustCertsFilePath": Property("ca_file", read_text),
    "tlsCertificateFilePath": Property("cert_file", read_text),
    "tlsKeyFilePath": Property("key_file", read_text),
    "tlsHostnameVerificationEnable": Property("check_hostname", read_flag),
}
"""Names that stand for arguments of Tls."""

_SERVICE_URLS: Final = ("serviceUrl", "brokerServiceUrl")
_AUTH_PLUGINS: Final = ("authPluginClassName", "authPlugin")
_AUTH_PARAMS: Final = ("authParams", "authParamMap")

_STORES: Final = "Python cannot read Java key stores; convert them to PEM, and use tlsTrustCertsFilePath, tlsCertificateFilePath"
_CONTEXT: Final = "pass tls=Tls(context=…) beside the properties"
_CONNECTOR: Final = "pass connector, an async function (host, port) -> socket, beside the properties"

_OFF: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "lookupTimeoutMs": (("-1",), "left out: operationTimeoutMs is also the limit of a lookup"),
    "tlsAllowInsecureConnection": (("false",), f"false; to trust every certificate {_CONTEXT}"),
    "useKeyStoreTls": (("false",), f"false: {_STORES}"),
    "tlsTrustStorePath": (("",), f"left out: {_STORES}"),
    "tlsTrustStorePassword": (("",), f"left out: {_STORES}"),
    "tlsKeyStorePath": (("",), f"left out: {_STORES}"),
    "tlsKeyStorePassword": (("",), f"left out: {_STORES}"),
    "tlsCiphers": (("", "[]"), f"left out; {_CONTEXT}"),
    "tlsProtocols": (("", "[]"), f"left out; {_CONTEXT}"),
    "sslFactoryPlugin": (
        ("", "org.apache.pulsar.common.util.DefaultPulsarSslFactory"),
        f"left out; {_CONTEXT}",
    ),
    "sslFactoryPluginParams": (("",), f"left out; {_CONTEXT}"),
    "proxyServiceUrl": (("",), f"left out; {_CONNECTOR}"),
    "proxyProtocol": (("",), f"left out; {_CONNECTOR}"),
    "socks5ProxyAddress": (("",), f"left out; {_CONNECTOR}"),
    "socks5ProxyUsername": (("",), f"left out; {_CONNECTOR}"),
    "socks5ProxyPassword": (("",), f"left out; {_CONNECTOR}"),
    "originalPrincipal": (("",), "left out: this client is no proxy"),
    "lookupProperties": (("", "{}"), "left out: lookups have no properties here"),
    "serviceUrlProvider": (("",), "left out: pass the service URL to PulsarClient"),
    "authentication": (("",), "given as authentication=TokenAuthentication(…) beside the properties"),
}
"""Features that this client lacks: the values that leave them off, and what is allowed."""

_THREADS: Final = "the client runs on the event loop of its caller"
_ADMIN: Final = "the client uses Pulsar's binary protocol only"

_IGNORED: Final[Mapping[str, str]] = {
    "numIoThreads": _THREADS,
    "numListenerThreads": _THREADS,
    "enableBusyWait": _THREADS,
    "statsIntervalSeconds": "statistics are read from the objects, not logged",
    "useTcpNoDelay": "asyncio always sets TCP_NODELAY",
    "useTls": "the scheme of the service URL says it: pulsar+ssl://",
    "sslProvider": "Python's ssl module is used",
    "autoCertRefreshSeconds": "certificates are read when the client is entered",
    "tlsTrustStoreType": "key stores are not read",
    "tlsKeyStoreType": "key stores are not read",
    "maxLookupRequest": "lookups beyond concurrentLookupRequest wait without a limit",
    "requestTimeoutMs": _ADMIN,
    "readTimeoutMs": _ADMIN,
    "webServiceUrl": _ADMIN,
    "dnsLookupBindAddress": "names are resolved by the operating system",
    "dnsLookupBindPort": "names are resolved by the operating system",
    "dnsServerAddresses": "names are resolved by the operating system",
    "serviceUrlQuarantineInitDurationMs": "an address that fails is asked again only after the others",
    "serviceUrlQuarantineMaxDurationMs": "an address that fails is asked again only after the others",
    "enableTransaction": "transactions need no setting here: client.transaction()",
    "description": "the broker shows the version of the client",
    "tlsEnableHostnameVerification": "the name is tlsHostnameVerificationEnable",
    "openTelemetry": "`asyncgroup.telemetry` instruments the client",
    "tracingEnabled": "`asyncgroup.telemetry` instruments the client",
    "clock": "the clock of the event loop is used",
}
"""Reasons by name; they are logged as warnings."""

_PYTHON_NAMES: Final[Mapping[str, str]] = {
    "service_url": "the first argument of PulsarClient",
    "operation_timeout_seconds": "did you mean operation_timeout?",
    "connection_timeout_ms": "did you mean connect_timeout, in seconds?",
    "concurrent_lookup_requests": "did you mean max_lookup_requests?",
    "memory_limit_bytes": "did you mean memory_limit?",
    "io_threads": f"leave it out: {_THREADS}",
    "message_listener_threads": f"leave it out: {_THREADS}",
    "stats_interval_in_seconds": "leave it out: statistics are read from the objects",
    "log_conf_file_path": "leave it out: Python's logging is used",
    "logger": "leave it out: Python's logging is used, with the logger asyncgroup.pulsar",
    "use_tls": "leave it out: the scheme of the service URL says it: pulsar+ssl://",
    "tls_trust_certs_file_path": "pass tls=Tls(ca_file=…)",
    "tls_certificate_file_path": "pass tls=Tls(cert_file=…, key_file=…)",
    "tls_private_key_file_path": "pass tls=Tls(cert_file=…, key_file=…)",
    "tls_validate_hostname": "pass tls=Tls(check_hostname=…)",
    "tls_allow_insecure_connection": "pass tls=Tls(context=…)",
    "security": "pass tls=Tls(…) and authentication=TokenAuthentication(…)",
    "token": "pass authentication=TokenAuthentication(…)",
    "auth": "pass authentication=TokenAuthentication(…)",
    "request_timeout": "did you mean operation_timeout?",
}
"""Arguments of the Python client's `Client`, and of this package's clients of Kafka."""


# --- reading ----------------------------------------------------------------------------------------------------------


def read_client_properties(
    cls: type[C], properties: Mapping[str, object], keys: Mapping[str, Any], known: tuple[str, ...]
) -> FromProperties[C]:
    """Create a `cls`, which has the keys `known`, from `properties`; `keys` override them."""
    if not isinstance(properties, Mapping):
        raise wrong_type("properties", properties, "a mapping of Pulsar's names to values")
    found = _Found()
    for name, value in properties.items():
        if not isinstance(name, str):
            raise ConfigError("properties", name, "names that are strings")
        if value is not None:  # as in Java: the same as not given
            found.add(name, value, known)
    made = found.keys | found.security() | dict(keys)
    try:
        config = cls(**made)
    except ConfigError as error:
        if error.key in keys or error.key not in found.names:
            raise
        name, value = found.names[error.key]
        raise ConfigError(name, value, f"{error.key}={error.value!r}; {error.allowed}") from None
    for name in found.ignored:
        _log.warning("property %s has no effect in asyncgroup and is ignored: %s", name, _IGNORED[name])
    return FromProperties(config, found.rest)


class _Found:
    """What the properties stand for."""

    def __init__(self) -> None:
        self.keys: dict[str, Any] = {}
        self.rest: dict[str, str] = {}
        self.names: dict[str, tuple[str, object]] = {}
        """Name and value of the property of each key."""
        self.ignored: list[str] = []
        self._tls: dict[str, Any] = {}
        self._plugin = ""
        self._params: tuple[str, object] | None = None

    def add(self, name: str, value: object, known: tuple[str, ...]) -> None:
        if name in _KEYS:
            prop = _KEYS[name]
            self.keys[prop.key] = read_property(prop, name, value)
            self.names[prop.key] = name, value
        elif name in _TLS:
            if (read := read_property(_TLS[name], name, value)) != "":
                self._tls[_TLS[name].key] = read
        elif name in _SERVICE_URLS:
            self._add_once("service_url", read_text(value), name)
        elif name in _AUTH_PLUGINS:
            self._plugin = read_text(value)
        elif name in _AUTH_PARAMS:
            if value != "":
                self._params = name, value
        elif name in _OFF:
            values, allowed = _OFF[name]
            if read_text(value).lower() not in map(str.lower, values):
                raise ConfigError(name, shown(name, value), allowed)
        elif name in _IGNORED:
            self.ignored.append(name)
        else:
            raise ConfigError(name, shown(name, value), _suggest_property(name, known))

    def _add_once(self, key: str, value: str, name: str) -> None:
        if self.rest.setdefault(key, value) != value:
            raise ConfigError(name, value, f"the same as {key}={self.rest[key]!r}")

    def security(self) -> dict[str, Any]:
        """Return `tls` and `authentication`, as far as they are given."""
        made: dict[str, Any] = {}
        authentication = self._authentication()
        if authentication is not None:
            made["authentication"] = authentication
        if self._tls:
            for key in ("ca_file", "cert_file", "key_file"):
                _check_file(key, self._tls.get(key))
            made["tls"] = Tls(**self._tls)
        return made

    def _authentication(self) -> PulsarAuthentication | None:
        if not self._plugin:
            if self._params is not None:
                raise ConfigError(self._params[0], HIDDEN, "given together with authPluginClassName")
            return None
        method = _PLUGINS.get(self._plugin.removeprefix("org.apache.pulsar.client.impl.auth."))
        if method is None:
            raise ConfigError(
                "authPluginClassName",
                self._plugin,
                "AuthenticationToken, AuthenticationBasic or AuthenticationTls of org.apache.pulsar.client.impl.auth; for "
                "others pass authentication=TokenAuthentication(function) beside the properties",
            )
        name, params = self._params or ("authParams", "")
        if method == "token":
            return _token(name, params)
        given = _params_of(name, params)
        if method == "tls":
            self._tls |= {
                ours: given[theirs]
                for theirs, ours in (("tlsCertFile", "cert_file"), ("tlsKeyFile", "key_file"))
                if theirs in given
            }
            return TlsAuthentication()
        if not given.get("userId") or not given.get("password"):
            raise ConfigError(name, HIDDEN, 'a user and a password: {"userId": "…", "password": "…"}')
        return BasicAuthentication(given["userId"], given["password"])


_PLUGINS: Final[Mapping[str, str]] = {
    "AuthenticationToken": "token",
    "AuthenticationBasic": "basic",
    "AuthenticationTls": "tls",
    "AuthenticationDisabled": "",
    "token": "token",
    "basic": "basic",
    "tls": "tls",
}


def _check_file(key: str, file: str | None) -> None:
    if file is not None and not Path(file).is_file():
        name = next(name for name, prop in _TLS.items() if prop.key == key)
        raise ConfigError(name, file, "a file that exists")


def _read_token(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError as error:  # it is tried again: the file may be replaced now
        raise ConnectError(f"{file}: {error.strerror}") from error


def _token(name: str, params: object) -> TokenAuthentication:
    """Read `token:…`, `file:…` or the token itself (Java's AuthenticationToken)."""
    given: object = params
    if isinstance(params, Mapping) or read_text(params).startswith("{"):
        given = _params_of(name, params).get("token", "")
    text = read_text(given)
    if text.startswith("file:"):
        file = Path(re.sub(r"^file:(//)?", "", text))
        return TokenAuthentication(lambda: _read_token(file))
    text = text.removeprefix("token:")
    if not text:
        raise ConfigError(name, HIDDEN, "token:… or file:///path of a file with the token")
    return TokenAuthentication(text)


def _params_of(name: str, params: object) -> dict[str, str]:
    """Read a mapping, JSON, or `name:value,name:value`. Raises ConfigError, which does not show it."""
    if isinstance(params, Mapping):
        return {str(key): read_text(value) for key, value in params.items()}
    text = read_text(params)
    if text.startswith("{"):
        try:
            read = json.loads(text)
        except ValueError:
            raise ConfigError(name, HIDDEN, "valid JSON") from None
        return {str(key): read_text(value) for key, value in read.items()}
    parts = [part.partition(":") for part in text.split(",") if part.strip()]
    return {key.strip(): value.strip() for key, _, value in parts}


# --- suggestions ------------------------------------------------------------------------------------------------------


CLIENT_NAMES: Final = (
    *_KEYS,
    *_TLS,
    *_SERVICE_URLS,
    *_AUTH_PLUGINS,
    *_AUTH_PARAMS,
    *_OFF,
    *_IGNORED,
)
"""Every name."""


def _suggest_property(name: str, known: tuple[str, ...]) -> str:
    if name in known:
        return f"{_NO_SUCH_KEY}; {name} is a keyword argument: from_properties(properties, {name}=…)"
    if near := close_matches(name, CLIENT_NAMES):
        return f"{_NO_SUCH_KEY}; did you mean {' or '.join(near)}?"
    return _NO_SUCH_KEY


def suggest_client_key(key: str, known: tuple[str, ...]) -> str:
    """Return the text that suggests a replacement for `key`, which PulsarConfig does not have."""
    if (found := _PYTHON_NAMES.get(key)) is not None:
        return f"{_NO_SUCH_KEY}; {found}"
    for name in CLIENT_NAMES:
        if key in (name, _snake(name)):
            return f"{_NO_SUCH_KEY}; {_meaning(name)}"
    if near := close_matches(key, known):
        return f"{_NO_SUCH_KEY}; did you mean {' or '.join(near)}?"
    return _NO_SUCH_KEY


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _meaning(name: str) -> str:
    if name in _KEYS:
        prop = _KEYS[name]
        in_seconds = ", in seconds" if prop.read in (_milliseconds, _nanoseconds, _seconds) else ""
        return f"did you mean {prop.key}{in_seconds}?"
    if name in _TLS:
        return f"pass tls=Tls({_TLS[name].key}=…)"
    if name in _SERVICE_URLS:
        return _PYTHON_NAMES["service_url"]
    if name in _OFF:
        return _OFF[name][1]
    return _IGNORED.get(name, "pass authentication=TokenAuthentication(…)")
