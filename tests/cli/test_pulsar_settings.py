"""`asyncgroup broker --pulsar --set`: names of Pulsar's broker.conf, and options of EmbeddedPulsar."""

from __future__ import annotations

import signal
import urllib.request
from typing import Any
from urllib.error import HTTPError

import pytest

from asyncgroup.cli.broker_listeners import exposure_warning
from asyncgroup.cli.pulsar_settings import pulsar_settings
from asyncgroup.cli.setting_values import setting
from asyncgroup.errors import UsageError
from asyncgroup.pulsar_broker import EmbeddedPulsar
from tests.cli.programs import free_ports, started


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ("activeConsumerFailoverDelayTimeMillis=500", {"failover_delay": 0.5}),
        ("allowAutoTopicCreation=false", {"auto_create_topics": False}),
        ("authenticationRefreshCheckSeconds=5", {"credential_interval": 5.0}),
        ("brokerDeduplicationEnabled=true", {"deduplication": True}),
        ("defaultRetentionSizeInMB=2", {"retention_size": 2 << 20}),
        ("defaultRetentionSizeInMB=-1", {"retention_size": None}),
        ("defaultRetentionTimeInMinutes=2", {"retention_time": 120.0}),
        ("defaultRetentionTimeInMinutes=-1", {"retention_time": None}),
        ("maxMessageSize=1000", {"max_message_size": 1000}),
        ("namespaces=a/b, c/d", {"namespaces": ["a/b", "c/d"]}),
        ("policy_interval=0.5", {"policy_interval": 0.5}),
        ("retention_time=1", {"retention_time": 1.0}),
        ("tokens=a:b:admin,c:other", {"tokens": {"a:b": "admin", "c": "other"}}),
        ("transaction_coordinators=16", {"transaction_coordinators": 16}),
        ("users=ann:se:cret", {"users": {"ann": "se:cret"}}),
    ],
)
async def test_settings(given: str, options: dict[str, Any]) -> None:
    assert pulsar_settings([setting(given)]) == options
    EmbeddedPulsar(**options)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (
            ["deduplicate=true"],
            "--set deduplicate: an embedded Pulsar has no such setting; did you mean deduplication?",
        ),
        (["port=1"], "--set port: an embedded Pulsar has no such setting"),
        (["deduplication=1"], "--set deduplication=1 is not allowed: true or false"),
        (["maxMessageSize=0"], "--set maxMessageSize=0 is not allowed: a whole number, 1 or more"),
        (["credential_interval=0"], "--set credential_interval=0 is not allowed: seconds, more than 0"),
        (["tokens=secret"], "--set tokens=… is not allowed: TOKEN:ROLE, several separated by commas"),
        (["users=secret"], "--set users=… is not allowed: NAME:PASSWORD, several separated by commas"),
        (["namespaces=x"], "--set namespaces=x is not allowed: a list of names"),
        (
            ["deduplication=true", "brokerDeduplicationEnabled=true"],
            "--set brokerDeduplicationEnabled=true: sets the same option as --set deduplication=true",
        ),
    ],
)
async def test_wrong_settings(given: list[str], error: str) -> None:
    with pytest.raises(UsageError) as raised:
        pulsar_settings(map(setting, given))
    assert str(raised.value).startswith(error)
    assert "secret" not in str(raised.value)


def test_the_warning_names_those_who_can_connect() -> None:
    found = exposure_warning("192.0.2.1", None, has_credentials=True)
    assert "every client with a credential of --set tokens or users can" in (found or "")


@pytest.mark.full
def test_requests_need_the_token() -> None:
    port = free_ports(2)
    arguments = ("--port", str(port), "--admin-port", str(port + 1), "--set", "tokens=secret:admin")
    with started("broker", "--pulsar", *arguments) as program:
        assert program.line() == f"service URL: pulsar://127.0.0.1:{port}\n"
        url = program.line().removeprefix("admin URL: ").strip() + "/admin/v2/clusters"
        with pytest.raises(HTTPError, match="401"):
            urllib.request.urlopen(url)
        request = urllib.request.Request(url, headers={"Authorization": "Bearer secret"})
        with urllib.request.urlopen(request) as answer:
            assert answer.status == 200
        assert program.end(signal.SIGTERM)[0] == 143
