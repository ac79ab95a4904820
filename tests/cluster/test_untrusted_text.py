"""Text from brokers and clients is escaped and shortened in errors, logs and health."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from asyncgroup import Claim, ConsumerConfig, ConsumerGroup, Session
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.cluster import Cluster
from asyncgroup.cluster.connecting import connect
from asyncgroup.cluster.connection import Address
from asyncgroup.config import ClientConfig
from asyncgroup.errors import AsyncGroupError
from asyncgroup.hooks import Hooks
from asyncgroup.security import OAuthBearer, Plain, Sasl, Scram, Security, Tls
from asyncgroup.wire import messages as m
from tests.cluster.scripted import PORT, ScriptedCluster
from tests.cluster.support import cluster_of, now

EVIL = "ev\x1b[2Jil\nforged\x9b"
SHOWN = "ev\\x1b[2Jil\\nforged\\x9b"


async def failure(awaitable: Any) -> str:
    with pytest.raises(AsyncGroupError) as caught:
        await awaitable
    error_text = str(caught.value)
    assert error_text.isprintable()
    assert len(error_text) < 5000
    return error_text


@pytest.mark.virtual
async def test_host_names_and_error_messages_of_a_broker_are_escaped() -> None:
    async with ScriptedCluster("10.0.0.1", "10.0.0.2") as scripted:
        scripted[2].host = EVIL
        scripted[1].script["FindCoordinator"] = lambda call: call.answer(
            m.FindCoordinatorResponse(
                coordinators=[
                    m.FindCoordinatorResponse.Coordinator(
                        call.request.coordinator_keys[0], error_code=30, error_message=EVIL * 1000
                    )
                ]
            )
        )
        async with Cluster(
            f"10.0.0.1:{PORT}", ClientConfig(metadata_retry_max=0, connect_timeout=1.0)
        ) as cluster:
            assert SHOWN in await failure(cluster.request(2, m.ListGroupsRequest()))
            error_text = await failure(cluster.coordinators.find("g"))
            assert f"GROUP_AUTHORIZATION_FAILED (30): {SHOWN}" in error_text
        scripted[2].host = "10.0.0.2"


async def test_an_invalid_host_name_is_escaped() -> None:
    assert SHOWN in await failure(connect(Address(1, EVIL, PORT), "control", ClientConfig(), Hooks()))


@pytest.mark.virtual
@pytest.mark.parametrize(
    ("code", "mechanisms", "message", "auth_bytes", "sasl"),
    [
        (33, [EVIL] * 10_000, None, b"", Plain("alice", "secret")),
        (0, [], EVIL * 1000, b"", Plain("alice", "secret")),
        (0, [], None, f"e={EVIL * 1000}".encode(), Scram("alice", "secret")),
        (0, [], None, f"r=x,s=QUJD,i={EVIL * 1000}".encode(), Scram("alice", "secret")),
    ],
    ids=["mechanisms", "refusal", "SCRAM error", "SCRAM iterations"],
)
async def test_text_of_a_broker_in_sasl_errors_is_escaped(
    code: int, mechanisms: list[str], message: str | None, auth_bytes: bytes, sasl: Sasl
) -> None:
    async with ScriptedCluster("10.0.0.1") as scripted:
        scripted[1].script["SaslHandshake"] = lambda call: call.answer(
            m.SaslHandshakeResponse(error_code=code, mechanisms=mechanisms)
        )
        scripted[1].script["SaslAuthenticate"] = lambda call: call.answer(
            m.SaslAuthenticateResponse(
                error_code=58 if message else 0, error_message=message, auth_bytes=auth_bytes
            )
        )
        config = ClientConfig(security=Security(sasl=sasl))
        error_text = await failure(connect(Address(1, "10.0.0.1", PORT), "control", config, Hooks()))
        assert "secret" not in error_text


async def test_client_and_group_ids_are_escaped_in_health_and_logs(caplog: pytest.LogCaptureFixture) -> None:
    """Client and group ids with control characters, in the client and in the embedded broker."""
    seen = asyncio.Event()

    async def handler(session: Session, claim: Claim) -> None:
        seen.set()
        async for _ in claim:
            pass

    caplog.set_level(logging.DEBUG, "asyncgroup")
    config = ConsumerConfig(client_id=EVIL, close_timeout=5.0)
    async with EmbeddedCluster() as broker:
        broker.create_topic("t", 1)
        async with ConsumerGroup(broker.bootstrap_servers, EVIL, config) as group:
            running = asyncio.create_task(group.run("t", handler))
            await seen.wait()
            assert str(group.health()).isprintable()
            assert SHOWN in str(group.health())
        await running
        assert all(exchange.line().isprintable() for exchange in broker.history.of("JoinGroup"))
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("asyncgroup")]
    assert any(SHOWN in line for line in lines)
    assert [line for line in lines if not line.isprintable()] == []


# --- throttling -------------------------------------------------------------------------------------------------------


@pytest.mark.virtual
async def test_a_throttle_time_above_a_minute_is_reduced_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with ScriptedCluster("10.0.0.1") as scripted:
        answers = iter([60_000, 2**31 - 1, 0])
        scripted[1].script["ListGroups"] = lambda call: call.answer(
            m.ListGroupsResponse(throttle_time_ms=next(answers))
        )
        async with cluster_of(scripted) as cluster:
            await cluster.network.request(1, m.ListGroupsRequest())
            assert not caplog.records
            await cluster.network.request(1, m.ListGroupsRequest())
            await cluster.network.request(1, m.ListGroupsRequest())
            assert now() == pytest.approx(120.0, abs=1.0)
    (warning,) = (record for record in caplog.records if record.levelno >= logging.WARNING)
    assert warning.name == "asyncgroup.cluster"
    assert warning.getMessage() == (
        "node 1 (10.0.0.1:9092): ListGroupsResponse has a throttle_time_ms of 2147484 s; "
        "the client waits for 60 s"
    )


# --- unencrypted passwords --------------------------------------------------------------------------------------------


async def token() -> str:
    return "s3cret"


@pytest.mark.virtual
@pytest.mark.parametrize(
    ("security", "warned"),
    [
        (Security(sasl=Plain("alice", "s3cret")), True),
        (Security(sasl=OAuthBearer(token)), True),
        (Security(sasl=Scram("alice", "s3cret")), False),
        (Security(sasl=Plain("alice", "s3cret"), tls=Tls()), False),
        (None, False),
    ],
    ids=["PLAIN", "OAUTHBEARER", "SCRAM", "PLAIN over TLS", "none"],
)
async def test_unencrypted_credentials_are_logged_once(
    security: Security | None, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with ScriptedCluster("10.0.0.1") as scripted:
        scripted[1].script["SaslHandshake"] = lambda call: call.answer(m.SaslHandshakeResponse())
        scripted[1].script["SaslAuthenticate"] = lambda call: call.answer(m.SaslAuthenticateResponse())
        scripted[1].script["ListGroups"] = lambda call: call.answer(m.ListGroupsResponse())
        cluster = cluster_of(scripted, security=security)
        if security is None or (security.tls is None and not isinstance(security.sasl, Scram)):
            async with cluster:
                await cluster.network.request(1, m.ListGroupsRequest())
                await cluster.network.request(1, m.ListGroupsRequest(), lane="other")
    warnings = [record.getMessage() for record in caplog.records if "unencrypted" in record.getMessage()]
    assert len(warnings) == warned
    assert all("use Security(tls=Tls(…))" in text and "s3cret" not in text for text in warnings)
