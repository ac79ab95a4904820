"""Security settings: allowed values, contradictions, and that secrets are never shown."""

from __future__ import annotations

import asyncio
import functools
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from asyncgroup.errors import ConfigError
from asyncgroup.security import OAuthBearer, Plain, Scram, Security, Tls


async def token() -> str:
    return "t"


def traced(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that is not async, as those of tracing and metrics."""

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        return function(*arguments)

    return call


class Provider:
    async def __call__(self, scope: str = "") -> str:
        return f"token{scope}"

    @traced
    async def fetch(self, scope: str = "") -> str:
        return f"token{scope}"


class TracedProvider:
    __call__ = traced(Provider.__call__)


class Endless:
    """An object of a library that has each attribute."""

    def __call__(self) -> str:
        return ""

    def __getattr__(self, name: str) -> object:
        return type(self)()


def itself() -> str:
    return ""


itself.__wrapped__ = itself  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "provider",
    [
        Provider(),
        Provider().fetch,
        TracedProvider(),
        functools.partial(Provider(), "s"),
        traced(Provider()),
        traced(traced(token)),
        traced(functools.partial(traced(Provider()), "s")),
        functools.partial(functools.partial(traced(token))),
    ],
)
def test_async_token_providers(provider: Callable[[], Coroutine[Any, Any, str]]) -> None:
    assert asyncio.run(OAuthBearer(provider).token_provider()).startswith("t")  # type: ignore[arg-type]


@pytest.mark.parametrize("provider", [traced(lambda: "t"), functools.partial(str, "t"), Endless(), itself])
def test_plain_token_providers(provider: Any) -> None:
    with pytest.raises(ConfigError, match="async function"):
        OAuthBearer(provider)


@pytest.mark.parametrize(
    ("tls", "sasl", "protocol"),
    [
        (None, None, "PLAINTEXT"),
        (Tls(), None, "SSL"),
        (None, Plain("u", "p"), "SASL_PLAINTEXT"),
        (Tls(), Scram("u", "p"), "SASL_SSL"),
    ],
)
def test_security_protocol(tls: Any, sasl: Any, protocol: str) -> None:
    assert Security(tls=tls, sasl=sasl).protocol == protocol


def test_mechanisms() -> None:
    assert Plain("u", "p").mechanism == "PLAIN"
    assert Scram("u", "p").mechanism == "SCRAM-SHA-512"
    assert Scram("u", "p", "SCRAM-SHA-256").mechanism == "SCRAM-SHA-256"
    assert OAuthBearer(token).mechanism == "OAUTHBEARER"
    assert len({Plain("u", "p"), Scram("u", "p"), OAuthBearer(token, {"a": "b"}), Security(tls=Tls())}) == 4


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: Plain("", "s3cret"), "username=''"),
        (lambda: Plain("u", ""), r"password='\[hidden\]' is not allowed: a string without NUL"),
        (lambda: Plain("u", "s3cret\0"), r"password='\[hidden\]'"),
        (lambda: Scram("u", b"s3cret"), r"password='\[hidden\]'"),
        (lambda: Scram("u", "s3cret", "SCRAM-SHA-1"), "mechanism='SCRAM-SHA-1'.*SCRAM-SHA-256 or"),
        (lambda: OAuthBearer("s3cret"), r"token_provider='\[hidden\]' .*async function"),
        (lambda: OAuthBearer(lambda: "s3cret"), r"token_provider='\[hidden\]' .*async function.*partial"),
        (lambda: OAuthBearer(token, {"auth": "s3cret"}), "extensions='auth' .*not auth"),
        (lambda: OAuthBearer(token, {"a-b": "s3cret"}), "extensions='a-b'"),
        (lambda: OAuthBearer(token, {"a": "s3cret\x01"}), "extensions='a' .*printable"),
        (lambda: Security(sasl="s3cret"), "sasl of type str .*Plain"),
        (lambda: Security(tls=1), "tls of type int .*Tls"),
        (lambda: Security(tls="ca.pem"), "tls of type str .*Tls"),
        (lambda: Tls(ca_file="a", ca_data="b"), "ca_file='a' .*ca_data is given"),
        (lambda: Tls(key_file="a"), "key_file=.*only with cert_file"),
        (lambda: Tls(cert_data="a"), "cert_data=.*only with key_data"),
        (lambda: Tls(key_data="s3cret"), "key_data=.*only with cert_data"),
        (lambda: Tls(key_password="s3cret"), "key_password=.*only with cert_file or cert_data"),
        (lambda: Tls(context=ssl.create_default_context(), ca_file="a"), "context=.*leave ca_file out"),
        (lambda: Tls(context=ssl.create_default_context(), check_hostname=False), "leave check_hostname out"),
        (lambda: Tls(context="s3cret"), "context of type str"),
        (lambda: Tls(check_hostname="False"), "check_hostname of type str .*True or False"),
        (lambda: Tls(ca_file=5), "ca_file of type int"),
        (lambda: Tls(cert_data="a", key_data=b"s3cret"), "key_data of type bytes .*str"),
        (lambda: OAuthBearer(token, [("a", "s3cret")]), "extensions of type list"),
        (lambda: OAuthBearer(token, {"a": 5}), "extensions='a' .*printable"),
    ],
)
def test_invalid_settings(made: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        made()
    assert "s3cret" not in str(caught.value)


def test_no_repr_has_a_secret() -> None:
    values = [
        Plain("alice", "s3cret"),
        Scram("alice", "s3cret"),
        OAuthBearer(token, {"a": "s3cret"}),
        Tls(cert_data="s3cret", key_data="s3cret", key_password="s3cret"),
    ]
    for value in values:
        assert "s3cret" not in repr(value)
        assert "s3cret" not in repr(
            Security(sasl=value) if not isinstance(value, Tls) else Security(tls=value)
        )


@pytest.mark.parametrize(
    ("tls", "message"),
    [
        (Tls(ca_file="/nowhere/ca.pem"), "ca_file='/nowhere/ca.pem' .*No such file"),
        (Tls(ca_data="no PEM"), "ca_data='given'"),
        (Tls(cert_file="/nowhere/cert.pem"), "cert_file='/nowhere/cert.pem' .*No such file"),
        (Tls(cert_data="no PEM", key_data="s3cret"), "cert_data='given'"),
    ],
)
def test_files_that_do_not_load(tls: Tls, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        tls.make_context()
    assert "s3cret" not in str(caught.value)


def test_contexts() -> None:
    made = Tls().make_context()
    assert made.verify_mode is ssl.CERT_REQUIRED
    assert made.check_hostname
    assert made.minimum_version >= ssl.TLSVersion.TLSv1_2
    loose = Tls(check_hostname=False).make_context()
    assert (loose.verify_mode, loose.check_hostname) == (ssl.CERT_REQUIRED, False)
    own = ssl.create_default_context()
    assert Tls(context=own).make_context() is own


def test_temporary_files_of_inline_keys_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(ConfigError):
        Tls(cert_data="no PEM", key_data="s3cret").make_context()
    assert list(tmp_path.iterdir()) == []
