"""PulsarConfig: each key's rule, the names of Java's client, and what is shown of secrets."""

from __future__ import annotations

import copy
import logging
import pickle
import socket
from dataclasses import asdict, fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from asyncgroup.errors import ConfigError, ConnectError, UsageError
from asyncgroup.pulsar.authentication import BasicAuthentication, TlsAuthentication, TokenAuthentication
from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar.config import PulsarConfig
from asyncgroup.pulsar.service_url import BrokerAddress, ServiceUrl
from asyncgroup.secret import secrets_in_pickles
from asyncgroup.security import Tls


async def open_socket(host: str, port: int) -> socket.socket:
    """Open nothing: it is never called."""
    raise NotImplementedError


SECONDS: tuple[tuple[Any, ...], tuple[Any, ...]] = (
    (0.5, 1, 3600.0),
    (0, -1, "1", True, None, timedelta(seconds=1), 3601),
)
POSITIVE: tuple[tuple[Any, ...], tuple[Any, ...]] = ((1, 50), (0, -1, 1.0, True, "1", None))

RULES: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {
    "connect_timeout": SECONDS,
    "operation_timeout": SECONDS,
    "keep_alive_interval": SECONDS,
    "connections_per_broker": POSITIVE,
    "connections_max_idle": SECONDS,
    "retry_backoff": ((0.1, 60.0), (0, -1, "1", None, 61)),
    "retry_backoff_max": ((0.1, 3600), (0, 0.05, None)),
    "max_lookup_requests": POSITIVE,
    "max_lookup_redirects": ((0, 20), (-1, 1.5, None)),
    "max_rejected_requests": POSITIVE,
    "memory_limit": ((1, 8 << 30), (0, -1, 1.5, None)),
    "partitions_update_interval": ((0, 60.0), (-1, None)),
    "max_message_size": ((1, 5 << 20), (0, 1 << 31, None)),
    "listener_name": ((None, "internal"), ("", 7)),
    "tls": ((None, Tls()), ("ca.pem", True)),
    "authentication": (
        (None, TokenAuthentication("t"), BasicAuthentication("a", "b")),
        ("token", 7, TlsAuthentication()),
    ),
    "connector": ((None, open_socket), ("proxy:1080",)),
    "local_address": ((None, "10.0.0.1"), ("", 7)),
    "tcp_keepalive": ((None, 15.0), (0, -1, 40_000)),
}
"""Valid and invalid values of each key."""


def test_every_key_is_in_the_table_and_documented() -> None:
    keys = [field.name for field in fields(PulsarConfig)]
    assert sorted(RULES) == sorted(keys)
    assert PulsarConfig.__doc__ is not None
    assert [key for key in keys if f"`{key}`" not in PulsarConfig.__doc__] == []


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, (valid, _) in RULES.items() for value in valid]
)
def test_valid_values(key: str, value: Any) -> None:
    assert getattr(PulsarConfig(**{key: value}), key) == value


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, (_, invalid) in RULES.items() for value in invalid]
)
def test_invalid_values(key: str, value: Any) -> None:
    with pytest.raises(ConfigError) as raised:
        PulsarConfig(**{key: value})
    # either key may be named by a rule for two
    assert raised.value.key in (key, f"{key}_max")


def test_the_error_of_a_long_duration_asks_for_milliseconds() -> None:
    with pytest.raises(ConfigError, match=r"at most 3600.*30"):
        PulsarConfig(operation_timeout=30_000)


def test_keys_that_contradict_each_other() -> None:
    with pytest.raises(ConfigError, match="connector opens the sockets"):
        PulsarConfig(connector=open_socket, local_address="10.0.0.1")
    with pytest.raises(ConfigError, match=r"together with tls=Tls\(cert_file"):
        PulsarConfig(authentication=TlsAuthentication(), tls=Tls())
    assert PulsarConfig(authentication=TlsAuthentication(), tls=Tls(cert_file=__file__)).tls is not None


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("operation_timout", "did you mean operation_timeout?"),
        ("operation_timeout_ms", "did you mean operation_timeout"),
        ("operationTimeoutMs", "did you mean operation_timeout, in seconds?"),
        ("connection_timeout_ms", "did you mean connect_timeout, in seconds?"),
        ("keep_alive_interval_seconds", "did you mean keep_alive_interval, in seconds?"),
        ("memory_limit_bytes", "did you mean memory_limit?"),
        ("io_threads", "leave it out: the client runs on the event loop of its caller"),
        ("num_io_threads", "the client runs on the event loop of its caller"),
        ("tls_trust_certs_file_path", r"pass tls=Tls\(ca_file=…\)"),
        ("tls_key_file_path", r"pass tls=Tls\(key_file=…\)"),
        ("auth_params", r"pass authentication=TokenAuthentication\(…\)"),
        ("service_url", "the first argument of PulsarClient"),
        ("socks5_proxy_address", "pass connector"),
        ("xyzzy", "there is no such key$"),
    ],
)
def test_an_unknown_key_with_suggestions(key: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        PulsarConfig(**{key: "hunter2"})


def test_the_config_of_a_client() -> None:
    with pytest.raises(ConfigError, match=r"config='\[hidden\]'.*from_properties"):
        PulsarClient("pulsar://a", {"authParams": "hunter2"})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="a PulsarConfig or None"):
        PulsarClient("pulsar://a", 7)  # type: ignore[arg-type]
    with pytest.raises(
        ConfigError, match=r"service_url='pulsar://a'.*pulsar\+ssl://…, as the configuration has tls"
    ):
        PulsarClient("pulsar://a", PulsarConfig(tls=Tls()))


# --- service URLs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "is_tls", "addresses"),
    [
        ("pulsar://host", False, (("host", 6650),)),
        ("pulsar://host:7000/", False, (("host", 7000),)),
        ("pulsar+ssl://host", True, (("host", 6651),)),
        ("pulsar://a,b:1, c:65535", False, (("a", 6650), ("b", 1), ("c", 65535))),
        ("pulsar://[::1]:7000,[fe80::1]", False, (("::1", 7000), ("fe80::1", 6650))),
    ],
)
def test_service_urls(url: str, is_tls: bool, addresses: Any) -> None:
    assert ServiceUrl.parse(url) == (is_tls, addresses)
    assert ServiceUrl.parse(str(ServiceUrl.parse(url))) == (is_tls, addresses)
    assert BrokerAddress.of_url(url) == addresses[0]


@pytest.mark.parametrize(
    "url",
    [
        *("", "host:6650", "http://host:8080", "pulsar://", "pulsar://,", "pulsar://a,,b", "pulsar://a/b"),
        *(
            "pulsar://a:",
            "pulsar://a:0",
            "pulsar://a:65536",
            "pulsar://a:x",
            "pulsar://:6650",
            "pulsar://a:-1",
        ),
        *("pulsar://[::1", None, 7, "pulsar:a", "PULSAR://a", "pulsar://a:6650x", "pulsar://::1:6650"),
        *(
            "pulsar://[::1]x",
            "pulsar://[::1]7000",
            "pulsar://[::1]:",
            "pulsar://a@b",
            "pulsar://a:" + "1" * 5000,
        ),
    ],
)
def test_invalid_service_urls(url: Any) -> None:
    with pytest.raises(ConfigError, match=r"service_url=.*pulsar://host\[:port\]"):
        ServiceUrl.parse(url)


def test_a_password_in_a_service_url_is_hidden() -> None:
    for url in ("pulsar://alice:hunter2@host:6650", "pulsar://hunter2@host", "http://alice:hunter2@host"):
        with pytest.raises(ConfigError, match=r"service_url='\[hidden\]'"):
            ServiceUrl.parse(url)


# --- properties -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "key", "found"),
    [
        ("operationTimeoutMs", "10000", "operation_timeout", 10.0),
        ("connectionTimeoutMs", 1500, "connect_timeout", 1.5),
        ("keepAliveIntervalSeconds", "45", "keep_alive_interval", 45.0),
        ("connectionsPerBroker", "3", "connections_per_broker", 3),
        ("connectionMaxIdleSeconds", 120, "connections_max_idle", 120.0),
        ("memoryLimitBytes", str(8 << 30), "memory_limit", 8 << 30),
        ("initialBackoffIntervalNanos", "200000000", "retry_backoff", 0.2),
        ("maxBackoffIntervalNanos", 30_000_000_000, "retry_backoff_max", 30.0),
        ("concurrentLookupRequest", "7", "max_lookup_requests", 7),
        ("maxLookupRedirects", "7", "max_lookup_redirects", 7),
        ("maxNumberOfRejectedRequestPerConnection", "7", "max_rejected_requests", 7),
        ("listenerName", "internal", "listener_name", "internal"),
    ],
)
def test_names_of_java(name: str, value: object, key: str, found: object) -> None:
    config, rest = PulsarConfig.from_properties({name: value})
    assert config == PulsarConfig(**{key: found})
    assert rest == {}
    assert (
        PulsarConfig.from_properties({name: value}, **{key: getattr(PulsarConfig(), key)}).config
        == PulsarConfig()
    )


def test_javas_defaults_are_ours() -> None:
    """The defaults of `ClientConfigurationData`, except for the verification of host names."""
    java = {
        "operationTimeoutMs": 30_000,
        "connectionTimeoutMs": 10_000,
        "lookupTimeoutMs": -1,
        "keepAliveIntervalSeconds": 30,
        "connectionsPerBroker": 1,
        "connectionMaxIdleSeconds": 60,
        "memoryLimitBytes": 64 << 20,
        "initialBackoffIntervalNanos": 100_000_000,
        "maxBackoffIntervalNanos": 60_000_000_000,
        "concurrentLookupRequest": 5000,
        "maxLookupRedirects": 20,
        "maxNumberOfRejectedRequestPerConnection": 50,
        "tlsAllowInsecureConnection": False,
        "useKeyStoreTls": False,
        "tlsTrustStorePath": None,
        "tlsCiphers": [],
        "enableTransaction": False,
        "proxyServiceUrl": None,
    }
    assert PulsarConfig.from_properties(java).config == PulsarConfig()


@pytest.mark.parametrize("name", ["serviceUrl", "brokerServiceUrl"])
def test_the_service_url_is_apart(name: str) -> None:
    found = PulsarConfig.from_properties({name: "pulsar://host:6650"})
    assert found.rest == {"service_url": "pulsar://host:6650"}
    with pytest.raises(ConfigError, match="the same as service_url='pulsar://a'"):
        PulsarConfig.from_properties({"serviceUrl": "pulsar://a", "brokerServiceUrl": "pulsar://b"})


def test_tls_files(tmp_path: Path) -> None:
    file = tmp_path / "file.pem"
    file.touch()
    names = ("tlsTrustCertsFilePath", "tlsCertificateFilePath", "tlsKeyFilePath")
    config, _ = PulsarConfig.from_properties(
        {**dict.fromkeys(names, str(file)), "tlsHostnameVerificationEnable": "false"}
    )
    assert config.tls == Tls(ca_file=str(file), cert_file=str(file), key_file=str(file), check_hostname=False)
    for name in names:
        with pytest.raises(ConfigError, match=f"{name}=.*a file that exists"):
            PulsarConfig.from_properties({**dict.fromkeys(names, str(file)), name: str(tmp_path / "no")})
    assert PulsarConfig.from_properties(dict.fromkeys(names, "")).config.tls is None


PLUGIN = "org.apache.pulsar.client.impl.auth.Authentication"


async def credential(properties: dict[str, object]) -> tuple[str, bytes]:
    """Return the method and the credential that these properties stand for."""
    authentication = PulsarConfig.from_properties(properties).config.authentication
    assert authentication is not None
    return authentication.method, await authentication.credential()


@pytest.mark.parametrize(
    ("plugin", "params", "method", "data"),
    [
        ("Token", "token:abc", "token", b"abc"),
        ("Token", "abc", "token", b"abc"),
        ("Token", '{"token": "abc"}', "token", b"abc"),
        ("Basic", '{"userId": "alice", "password": "a,b:c"}', "basic", b"alice:a,b:c"),
    ],
)
async def test_authentication_of_java(plugin: str, params: str, method: str, data: bytes) -> None:
    for name in (PLUGIN + plugin, "Authentication" + plugin):
        assert await credential({"authPluginClassName": name, "authParams": params}) == (method, data)
        assert await credential({"authPlugin": name, "authParams": params}) == (method, data)
    assert await credential({"authPlugin": plugin.lower(), "authParams": params}) == (method, data)


async def test_a_token_in_a_file_is_read_for_each_use(tmp_path: Path) -> None:
    file = tmp_path / "token"
    for prefix in ("file://", "file:"):
        config = PulsarConfig.from_properties(
            {"authPluginClassName": PLUGIN + "Token", "authParams": f"{prefix}{file}"}
        ).config
        assert config.authentication is not None
        for token in ("one", "two"):
            file.write_text(f"{token}\n")
            assert await config.authentication.credential() == token.encode()
        file.unlink()
        with pytest.raises(ConnectError, match=f"{file}: No such file or directory"):
            await config.authentication.credential()


def test_authentication_by_tls(tmp_path: Path) -> None:
    file = tmp_path / "cert:file.pem"
    file.touch()
    for params in (
        f"tlsCertFile:{file},tlsKeyFile:{file}",
        {"tlsCertFile": str(file), "tlsKeyFile": str(file)},
    ):
        config = PulsarConfig.from_properties(
            {"authPluginClassName": PLUGIN + "Tls", "authParams": params}
        ).config
        assert config.authentication == TlsAuthentication()
        assert config.tls == Tls(cert_file=str(file), key_file=str(file))


@pytest.mark.parametrize(
    ("properties", "text"),
    [
        (
            {"authPluginClassName": PLUGIN + "Basic", "authParams": "hunter2"},
            r"authParams='\[hidden\]'.*a user and",
        ),
        (
            {"authPluginClassName": PLUGIN + "Basic", "authParams": "{hunter2"},
            r"authParams='\[hidden\]'.*JSON",
        ),
        ({"authPluginClassName": PLUGIN + "Token"}, r"authParams='\[hidden\]'.*token:…"),
        ({"authParams": "token:hunter2"}, r"authParams='\[hidden\]'.*together with authPluginClassName"),
        (
            {"authPluginClassName": "x.AuthenticationAthenz"},
            "AuthenticationToken, AuthenticationBasic or",
        ),
        ({"authPluginClassName": PLUGIN + "Tls"}, r"together with tls=Tls\(cert_file"),
        ({"operationTimeoutMs": "soon"}, "operationTimeoutMs='soon'.*a whole number"),
        ({"operationTimeoutMs": "0"}, r"operationTimeoutMs='0'.*operation_timeout=0\.0; a number of seconds"),
        ({"operationTimoutMs": "1"}, "there is no such key; did you mean operationTimeoutMs?"),
        ({"operation_timeout": 1}, r"keyword argument: from_properties\(properties, operation_timeout=…"),
        ({"authParam": "hunter2"}, r"authParam='\[hidden\]'.*did you mean authParams?"),
        ({"lookupTimeoutMs": "5000"}, "operationTimeoutMs is also the limit of a lookup"),
        ({"tlsAllowInsecureConnection": "true"}, r"pass tls=Tls\(context=…\)"),
        ({"useKeyStoreTls": True}, "Python cannot read Java key stores"),
        ({"tlsTrustStorePassword": "hunter2"}, r"tlsTrustStorePassword='\[hidden\]'.*key stores"),
        ({"socks5ProxyPassword": "hunter2"}, r"socks5ProxyPassword='\[hidden\]'.*pass connector"),
        ({"tlsHostnameVerificationEnable": "maybe"}, "true or false"),
        ({7: "x"}, "names that are strings"),
        ("operationTimeoutMs=1", "a mapping of Pulsar's names to values"),
    ],
)
def test_properties_that_are_refused(properties: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text) as raised:
        PulsarConfig.from_properties(properties)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    "name", ["numIoThreads", "useTls", "statsIntervalSeconds", "webServiceUrl", "enableTransaction"]
)
def test_names_without_effect_are_logged(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert PulsarConfig.from_properties({name: "1"}).config == PulsarConfig()
    assert f"property {name} has no effect in asyncgroup and is ignored: " in caplog.text


def test_a_client_conf_of_pulsars_tools() -> None:
    config, rest = PulsarConfig.from_properties(
        {
            "webServiceUrl": "http://localhost:8080/",
            "brokerServiceUrl": "pulsar+ssl://localhost:6651/",
            "authPlugin": "",
            "authParams": "",
            "tlsAllowInsecureConnection": "false",
            "tlsEnableHostnameVerification": "false",
            "tlsTrustCertsFilePath": "",
            "useKeyStoreTls": "false",
            "tlsTrustStoreType": "JKS",
            "tlsTrustStorePath": "",
        }
    )
    assert config == PulsarConfig()
    assert ServiceUrl.parse(rest["service_url"]).is_tls


# --- secrets ----------------------------------------------------------------------------------------------------------

SECRETS = (
    TokenAuthentication("hunter2"),
    TokenAuthentication(lambda: "hunter2"),
    BasicAuthentication("alice", "hunter2"),
)


@pytest.mark.parametrize("authentication", SECRETS)
def test_secrets_are_hidden(authentication: Any) -> None:
    config = PulsarConfig(authentication=authentication, tls=Tls(cert_file="cert", key_password="hunter2"))
    client = PulsarClient("pulsar+ssl://a", config)
    for text in (repr(config), str(config), str(vars(config)), str(asdict(config)), repr(client)):
        assert "hunter2" not in text
    with pytest.raises(UsageError, match="cannot be pickled"):
        pickle.dumps(config)


def test_copies_and_pickles_are_equal() -> None:
    config = PulsarConfig(authentication=SECRETS[2], tls=Tls(key_password="b", cert_file="c"))
    assert copy.deepcopy(config) == copy.copy(config) == replace(config) == config
    with secrets_in_pickles():
        assert pickle.loads(pickle.dumps(config)) == config
    assert pickle.loads(pickle.dumps(PulsarConfig(retry_backoff=1))) == PulsarConfig(retry_backoff=1)
    assert len({PulsarConfig(), PulsarConfig()}) == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: TokenAuthentication(""),
        lambda: TokenAuthentication("hunter2\n"),
        lambda: TokenAuthentication(b"hunter2"),  # type: ignore[arg-type]
        lambda: BasicAuthentication("", "hunter2"),
        lambda: BasicAuthentication("a:b", "hunter2"),
        lambda: BasicAuthentication(7, "hunter2"),  # type: ignore[arg-type]
        lambda: BasicAuthentication("alice", ""),
        lambda: BasicAuthentication("alice", b"hunter2"),  # type: ignore[arg-type]
    ],
)
def test_credentials_that_cannot_be_sent(make: Any) -> None:
    with pytest.raises(ConfigError) as raised:
        make()
    assert "hunter2" not in str(raised.value)
