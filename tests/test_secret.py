"""Configurations with secrets: which operations hide them, raise an error, or need explicit permission."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
import pprint
from dataclasses import asdict, astuple, replace
from functools import partial
from typing import Any

import pytest

from asyncgroup.config import ConsumerConfig, ProducerConfig
from asyncgroup.errors import ConfigError, UsageError
from asyncgroup.secret import Secret, reveal, secrets_in_pickles
from asyncgroup.security import OAuthBearer, Plain, Scram, Security, Tls


async def fetch_token(password: str) -> str:
    return f"token of {password}"


provider = partial(fetch_token, "s3cret")

SASL: list[Any] = [
    Plain("alice", "s3cret"),
    Scram("alice", "s3cret"),
    OAuthBearer(provider, {"traceId": "s3cret"}),
    None,
]
TLS = Tls(cert_data="-----s3cret-----", key_data="s3cret", key_password="s3cret", ca_data="CA")
CONFIGS = [ConsumerConfig(security=Security(sasl=sasl, tls=TLS)) for sasl in SASL]
IDS = ["PLAIN", "SCRAM", "OAUTHBEARER", "TLS only"]


@pytest.mark.parametrize("config", CONFIGS, ids=IDS)
def test_operations_that_hide_secrets(config: ConsumerConfig) -> None:
    assert config.security is not None
    parts = [config, config.security, config.security.sasl, config.security.tls]
    shown = [str(asdict(config)), str(astuple(config)), pprint.pformat(asdict(config)), str(config.client())]
    shown += [f"{part!r} {part!s} {part}" for part in parts]
    shown += [str(vars(part)) for part in parts if part is not None]
    shown += [json.dumps(asdict(config), default=repr), json.dumps(vars(config), default=str)]
    assert [text for text in shown if "s3cret" in text] == []
    assert "[hidden]" in shown[0]


@pytest.mark.parametrize("config", CONFIGS, ids=IDS)
def test_operations_that_raise(config: ConsumerConfig) -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        json.dumps(asdict(config))
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(UsageError, match="secrets_in_pickles"):
            pickle.dumps(config, protocol)


@pytest.mark.parametrize("config", CONFIGS, ids=IDS)
def test_operations_that_work(config: ConsumerConfig) -> None:
    assert config.security is not None
    for made in (
        copy.copy(config),
        copy.deepcopy(config),
        replace(config),
        replace(config, client_id="other"),
        replace(config, security=replace(config.security)),
        ConsumerConfig(**{key: getattr(config, key) for key in asdict(config)}),
    ):
        assert made.security == config.security
        assert hash(made.security) == hash(config.security)
    assert ProducerConfig(**config.client()).security == config.security


def test_copy_replace() -> None:
    """`copy.replace` exists since Python 3.13; older versions have `dataclasses.replace` only."""
    replaced: Any = getattr(copy, "replace", replace)
    assert replaced(CONFIGS[0], client_id="other").security == CONFIGS[0].security


@pytest.mark.parametrize("config", CONFIGS[:2] + CONFIGS[3:], ids=["PLAIN", "SCRAM", "TLS only"])
def test_a_pickle_with_secrets_has_to_be_asked_for(config: ConsumerConfig) -> None:
    with secrets_in_pickles():
        data = pickle.dumps(config)
    assert b"s3cret" in data
    assert pickle.loads(data) == config
    with pytest.raises(UsageError):
        pickle.dumps(config)


def test_a_pickle_without_secrets_needs_nothing() -> None:
    made = ConsumerConfig(client_id="me", security=Security(tls=Tls(ca_file="ca.pem", key_file=None)))
    assert pickle.loads(pickle.dumps(made)) == made


def test_the_values_are_there_for_those_who_ask() -> None:
    plain = Plain("alice", "s3cret")
    assert reveal(plain.password) == "s3cret"
    assert isinstance(plain.password, Secret)
    assert plain.password.reveal() == "s3cret"
    assert reveal("as it is") == "as it is"
    assert reveal(None) is None
    assert replace(plain, username="bob") == Plain("bob", "s3cret")
    assert replace(plain, password="other") != plain
    bearer = OAuthBearer(provider, {"traceId": "s3cret"})
    assert asyncio.run(bearer.token_provider()) == "token of s3cret"
    assert {name: reveal(value) for name, value in bearer.extensions.items()} == {"traceId": "s3cret"}
    assert replace(bearer, authzid="x").extensions == bearer.extensions
    assert replace(bearer).token_provider == bearer.token_provider


def test_a_secret_compares_with_secrets_only() -> None:
    assert Secret("s3cret") == Secret("s3cret") != Secret("other")
    assert Secret("s3cret") != "s3cret"
    assert len({Secret("s3cret"), Secret("s3cret"), Secret("other")}) == 2
    assert Secret("naïve\ud800") == Secret("naïve\ud800")
    assert (bool(Secret("")), bool(Secret("x"))) == (False, True)
    with pytest.raises(ConfigError, match="'int'"):
        Secret(5)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        vars(Secret("s3cret"))
    with pytest.raises(AttributeError):
        Secret("s3cret").text = "other"  # type: ignore[attr-defined]
