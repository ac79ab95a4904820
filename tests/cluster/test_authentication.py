"""SASL authentication with a scripted broker, in virtual time: exchanges, failures, session lifetimes (KIP-368)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from asyncgroup import ConsumerConfig, ConsumerGroup
from asyncgroup.cluster import Cluster
from asyncgroup.cluster.connecting import connect
from asyncgroup.cluster.connection import Address
from asyncgroup.config import ClientConfig
from asyncgroup.errors import (
    AuthenticationError,
    ConnectError,
    NoBrokersError,
    UnsupportedVersionError,
)
from asyncgroup.hooks import Hooks
from asyncgroup.security import OAuthBearer, Plain, Sasl, Scram, Security, TokenProvider
from asyncgroup.wire import messages as m
from tests.cluster.scripted import PORT, Call, ScriptedCluster, no_answer
from tests.cluster.support import LIST_GROUPS, Events, answer_list_groups, cluster_of, now
from tests.cluster.test_scram import Server

pytestmark = pytest.mark.virtual

Check = Callable[[bytes, dict[str, Any]], m.SaslAuthenticateResponse]


class SaslBroker:
    """The broker's side of SASL: calls `check(bytes, state of the connection)` for each SaslAuthenticate.

    Any other request on a connection that has not authenticated, or whose session has expired, closes it, as in Kafka.
    """

    def __init__(
        self, scripted: ScriptedCluster, node_id: int, check: Check, *, lifetime: float = 0.0
    ) -> None:
        self.broker = scripted[node_id]
        self.check = check
        self.lifetime = lifetime
        self.states: dict[int, dict[str, Any]] = {}
        self.broker.script["SaslHandshake"] = self.handshake
        self.broker.script["SaslAuthenticate"] = self.authenticate
        for api in ("Metadata", "ListGroups", "Heartbeat"):
            self.broker.script[api] = self.guarded(api, self.broker.script.get(api))

    def handshake(self, call: Call) -> None:
        offered = ["SCRAM-SHA-512", "PLAIN", "SCRAM-SHA-256", "OAUTHBEARER"]
        code = 0 if call.request.mechanism in offered else 33
        self.states[call.connection.number] = {"until": None}
        call.answer(m.SaslHandshakeResponse(error_code=code, mechanisms=offered))

    def authenticate(self, call: Call) -> None:
        state = self.states[call.connection.number]
        response = self.check(call.request.auth_bytes, state)
        if state.pop("done", False):
            response.session_lifetime_ms = int(self.lifetime * 1000)
            state["until"] = now() + self.lifetime if self.lifetime else float("inf")
        call.answer(response)

    def guarded(self, api: str, answer: Any) -> Callable[[Call], None]:
        def handle(call: Call) -> None:
            until = self.states.get(call.connection.number, {}).get("until")
            if until is None or now() > until:
                call.cut()
            else:
                (answer or getattr(self.broker, f"answer_{api}"))(call)

        return handle


def refuse(text: str | None = "Authentication failed", code: int = 58) -> m.SaslAuthenticateResponse:
    return m.SaslAuthenticateResponse(error_code=code, error_message=text)


def plain(data: bytes, state: dict[str, Any]) -> m.SaslAuthenticateResponse:
    if data not in (b"\0alice\0secret", b"admin\0alice\0secret"):
        return refuse("Authentication failed: Invalid username or password")
    state["done"] = True
    return m.SaslAuthenticateResponse()


def scram(mechanism: str, password: str = "secret") -> Check:
    def check(data: bytes, state: dict[str, Any]) -> m.SaslAuthenticateResponse:
        if "server" not in state:
            state["server"] = Server(mechanism, password)
            return m.SaslAuthenticateResponse(auth_bytes=state["server"].challenge(data))
        answer = state["server"].accepts(data)
        if answer is None:
            return refuse("Authentication failed during authentication due to invalid credentials")
        state["done"] = True
        return m.SaslAuthenticateResponse(auth_bytes=answer)

    return check


def bearer(data: bytes, state: dict[str, Any]) -> m.SaslAuthenticateResponse:
    state.setdefault("received", []).append(data)
    if data == b"n,,\x01auth=Bearer t0ken\x01traceId=7\x01\x01":
        state["done"] = True
        return m.SaslAuthenticateResponse()
    if data == b"\x01":
        return refuse('{"status":"invalid_token"}')
    return m.SaslAuthenticateResponse(auth_bytes=b'{"status":"invalid_token"}')


async def token() -> str:
    return "t0ken"


def with_sasl(sasl: Sasl) -> dict[str, Any]:
    return {"security": Security(sasl=sasl)}


def config_of(provider: TokenProvider) -> ClientConfig:
    return ClientConfig(**with_sasl(OAuthBearer(provider)))


async def failure(scripted: ScriptedCluster, sasl: Sasl, *kinds: type[Exception], **config: Any) -> str:
    """Return the error message of a failing connect; check that the connection is closed afterwards."""
    made = ClientConfig(**with_sasl(sasl), **config)
    with pytest.raises(kinds or (AuthenticationError,)) as caught:
        await connect(Address(1, "10.0.0.1", PORT), "control", made, Hooks())
    await asyncio.sleep(0.1)
    assert not scripted[1].open
    return str(caught.value)


# --- exchanges --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sasl", "check"),
    [
        (Plain("alice", "secret"), plain),
        (Plain("alice", "secret", authzid="admin"), plain),
        (Scram("alice", "secret", "SCRAM-SHA-256"), scram("SCRAM-SHA-256")),
        (Scram("alice", "secret"), scram("SCRAM-SHA-512")),
        (OAuthBearer(token, {"traceId": "7"}), bearer),
    ],
    ids=["PLAIN", "PLAIN as admin", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"],
)
async def test_every_connection_authenticates_first(sasl: Sasl, check: Check) -> None:
    async with ScriptedCluster("10.0.0.1", "10.0.0.2") as scripted:
        for node_id in (1, 2):
            scripted[node_id].script["ListGroups"] = answer_list_groups
            SaslBroker(scripted, node_id, check)
        async with cluster_of(scripted, **with_sasl(sasl)) as cluster:
            await cluster.network.request(2, LIST_GROUPS)
            await cluster.network.request(2, LIST_GROUPS, lane="other")
        exchange = [("SaslAuthenticate", 2)] * (2 if isinstance(sasl, Scram) else 1)
        expected = [("ApiVersions", 4), ("SaslHandshake", 1), *exchange, ("ListGroups", 5)]
        assert len(scripted.requests_of("ListGroups", 2)) == 2
        for number in {one.connection for one in scripted.requests_of("ListGroups", 2)}:
            on_it = [one for one in scripted.received if (one.node_id, one.connection) == (2, number)]
            assert [(one.api, one.version) for one in on_it] == expected
        handshakes = [one.request.mechanism for one in scripted.requests_of("SaslHandshake")]
        assert set(handshakes) == {sasl.mechanism}
        assert "secret" not in repr(cluster.config)


async def test_an_older_broker_gets_older_request_versions(scripted: ScriptedCluster) -> None:
    scripted[1].versions = {"SaslAuthenticate": (0, 0)}
    SaslBroker(scripted, 1, plain)
    async with cluster_of(scripted, **with_sasl(Plain("alice", "secret"))):
        assert {one.version for one in scripted.requests_of("SaslAuthenticate")} == {0}


async def test_a_broker_without_sasl_handshake_version_1_is_too_old(scripted: ScriptedCluster) -> None:
    scripted[1].versions = {"SaslHandshake": (0, 0)}
    error_text = await failure(scripted, Plain("alice", "secret"), UnsupportedVersionError)
    assert "SaslHandshake: node 1 (10.0.0.1:9092) offers 0, this client supports 1" in error_text


# --- rejected credentials ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sasl", "check", "expected"),
    [
        (
            Plain("alice", "wr0ng"),
            plain,
            "as user 'alice': SASL_AUTHENTICATION_FAILED (58): Authentication failed: Inv",
        ),
        (Scram("alice", "wr0ng"), scram("SCRAM-SHA-512"), "due to invalid credentials"),
        (
            OAuthBearer(token, {"traceId": "wr0ng"}),
            bearer,
            'SASL/OAUTHBEARER: SASL_AUTHENTICATION_FAILED (58): {"status":"invalid_token"}',
        ),
    ],
    ids=["PLAIN", "SCRAM", "OAUTHBEARER"],
)
async def test_wrong_credentials(scripted: ScriptedCluster, sasl: Sasl, check: Check, expected: str) -> None:
    SaslBroker(scripted, 1, check)
    error = await failure(scripted, sasl)
    assert error.startswith(f"node 1 (10.0.0.1:9092): SASL/{sasl.mechanism}")
    assert expected in error
    assert "wr0ng" not in error
    assert now() < 1.0


async def test_a_refused_token_is_acknowledged(scripted: ScriptedCluster) -> None:
    """RFC 7628: the server sends the error code only after the acknowledgement."""
    sasl_broker = SaslBroker(scripted, 1, bearer)
    await failure(scripted, OAuthBearer(token))
    assert sasl_broker.states[0]["received"] == [b"n,,\x01auth=Bearer t0ken\x01\x01", b"\x01"]


async def test_a_broker_that_does_not_know_the_password_is_rejected(scripted: ScriptedCluster) -> None:
    def impostor(data: bytes, state: dict[str, Any]) -> m.SaslAuthenticateResponse:
        answer = scram("SCRAM-SHA-256", "another")(data, state)
        return m.SaslAuthenticateResponse(auth_bytes=b"v=AAAA") if answer.error_code else answer

    SaslBroker(scripted, 1, impostor)
    error_text = await failure(scripted, Scram("alice", "secret", "SCRAM-SHA-256"))
    assert "it does not know the password" in error_text


async def test_a_mechanism_that_is_not_offered(scripted: ScriptedCluster) -> None:
    scripted[1].script["SaslHandshake"] = lambda call: call.answer(
        m.SaslHandshakeResponse(error_code=33, mechanisms=["SCRAM-SHA-512", "GSSAPI"])
    )
    error_text = await failure(scripted, Plain("alice", "secret"))
    assert error_text.endswith("the broker does not offer SASL/PLAIN; it offers GSSAPI, SCRAM-SHA-512")


async def test_a_listener_without_sasl(scripted: ScriptedCluster) -> None:
    scripted[1].script["SaslHandshake"] = lambda call: call.answer(m.SaslHandshakeResponse(error_code=34))
    assert "does not support SASL/PLAIN" in await failure(scripted, Plain("alice", "secret"))


async def test_a_retriable_sasl_error_is_a_connect_error(scripted: ScriptedCluster) -> None:
    SaslBroker(scripted, 1, lambda *_: refuse(None, 15))
    error_text = await failure(scripted, Plain("alice", "secret"), ConnectError)
    assert "COORDINATOR_NOT_AVAILABLE" in error_text


@pytest.mark.parametrize("api", ["SaslHandshake", "SaslAuthenticate"])
async def test_a_sasl_exchange_that_hangs_runs_into_connect_timeout(api: str) -> None:
    async with ScriptedCluster("10.0.0.1") as scripted:
        SaslBroker(scripted, 1, plain)
        scripted[1].script[api] = no_answer
        await failure(scripted, Plain("alice", "secret"), ConnectError, connect_timeout=4.0)
        assert now() == pytest.approx(4.0, abs=0.2)


async def test_a_token_provider_that_fails_is_the_cause_and_its_text_is_not_shown() -> None:
    async def fails() -> str:
        raise LookupError("no vault for t0ken")

    async def cancelled() -> str:
        raise asyncio.CancelledError

    async with ScriptedCluster("10.0.0.1") as scripted:
        SaslBroker(scripted, 1, bearer)
        assert "it was cancelled" in await failure(scripted, OAuthBearer(cancelled), ConnectError)
        for kind, connecting in (
            (ConnectError, connect(Address(1, "10.0.0.1", PORT), "control", config_of(fails), Hooks())),
            (NoBrokersError, Cluster(scripted.servers, config_of(fails)).__aenter__()),
        ):
            with pytest.raises(
                kind, match="SASL/OAUTHBEARER: the token provider raised LookupError"
            ) as caught:
                await connecting
            assert isinstance(caught.value.__cause__, LookupError)
            assert "t0ken" not in str(caught.value)


async def test_a_token_provider_that_hangs_or_takes_most_of_the_time_is_named() -> None:
    async def hangs() -> str:
        await asyncio.sleep(3600)
        return "late"

    async def slow() -> str:
        await asyncio.sleep(1.5)
        return await token()

    async with ScriptedCluster("10.0.0.1") as scripted:
        SaslBroker(scripted, 1, bearer)
        error_text = await failure(scripted, OAuthBearer(hangs), ConnectError, connect_timeout=2.0)
        assert "the token provider returned no token within 2 s (connect_timeout)" in error_text
        scripted[1].script["SaslAuthenticate"] = no_answer
        error_text = await failure(scripted, OAuthBearer(slow), ConnectError, connect_timeout=2.0)
        assert "the token provider took 1.5 of 2 s" in error_text
        error_text = await failure(scripted, OAuthBearer(token), ConnectError, connect_timeout=2.0)
        assert "token provider" not in error_text


async def test_a_token_provider_that_returns_no_token(scripted: ScriptedCluster) -> None:
    async def nonsense() -> Any:
        return "t0ken\r\nwith a line"

    SaslBroker(scripted, 1, bearer)
    error_text = await failure(scripted, OAuthBearer(nonsense))
    assert "did not return a token" in error_text
    assert "t0ken" not in error_text


async def test_a_group_raises_an_authentication_error_without_a_retry() -> None:
    async with ScriptedCluster("10.0.0.1", "10.0.0.2") as scripted:
        for node_id in (1, 2):
            SaslBroker(scripted, node_id, plain)
        config = ConsumerConfig(**with_sasl(Plain("alice", "wr0ng")))
        with pytest.raises(AuthenticationError, match="as user 'alice'"):
            async with ConsumerGroup(scripted.servers, "g", config) as group:
                await group.run("t", lambda *_: asyncio.sleep(0))  # type: ignore[arg-type, return-value]
        assert len(scripted.requests_of("SaslAuthenticate")) == 1


async def test_failed_authentication_does_not_count_as_a_response(scripted: ScriptedCluster) -> None:
    """Otherwise a group member that cannot authenticate would stay alive because of answered handshakes."""
    scripted[1].script["ListGroups"] = answer_list_groups
    sasl_broker = SaslBroker(scripted, 1, plain)
    config: dict[str, Any] = {**with_sasl(Plain("alice", "secret")), "metadata_refresh_interval": 0}
    async with cluster_of(scripted, **config) as cluster:
        await cluster.network.request(1, LIST_GROUPS)
        last = cluster.last_response_at
        sasl_broker.check = lambda *_: refuse()
        await asyncio.sleep(5.0)
        with pytest.raises(AuthenticationError):
            await cluster.network.request(1, LIST_GROUPS, lane="new")
        assert cluster.last_response_at == last


async def test_a_disconnect_without_sasl_gives_a_hint(scripted: ScriptedCluster) -> None:
    SaslBroker(scripted, 1, plain)
    with pytest.raises(NoBrokersError, match="does the listener require SASL"):
        async with cluster_of(scripted):
            pass


# --- session lifetimes ------------------------------------------------------------------------------------------------


async def test_an_expiring_sasl_session_gets_a_new_connection(scripted: ScriptedCluster) -> None:
    scripted[1].script["ListGroups"] = answer_list_groups
    SaslBroker(scripted, 1, plain, lifetime=60.0)
    events = Events()
    config = ClientConfig(**with_sasl(Plain("alice", "secret")), metadata_refresh_interval=0)
    async with Cluster(scripted.servers, config, hooks=Hooks([events])) as cluster:
        for _ in range(100):
            await cluster.request(1, LIST_GROUPS)
            await asyncio.sleep(3.0)
    # each connection is used for 54 s of its 60 s
    connected = [event for event in events.named("on_connect") if event[1] == 1]
    assert len(connected) == 6
    assert len({one.connection for one in scripted.requests_of("ListGroups")}) == 6


async def test_in_flight_requests_are_answered_on_the_old_connection(scripted: ScriptedCluster) -> None:
    held: list[Call] = []
    scripted[1].script["ListGroups"] = answer_list_groups
    scripted[1].script["Heartbeat"] = held.append
    SaslBroker(scripted, 1, plain, lifetime=60.0)
    async with cluster_of(scripted, **with_sasl(Plain("alice", "secret"))) as cluster:
        parked = asyncio.create_task(cluster.network.request(1, m.HeartbeatRequest(), timeout=300.0))
        await asyncio.sleep(55.0)
        await cluster.network.request(1, LIST_GROUPS)
        (old,) = {one.connection for one in scripted.requests_of("Heartbeat")}
        (new,) = {one.connection for one in scripted.requests_of("ListGroups")}
        assert old != new
        await asyncio.sleep(60.0)
        held[0].answer(m.HeartbeatResponse(error_code=27))
        assert (await parked).error_code == 27
        await asyncio.sleep(0.1)
        assert old not in {end.number for end in scripted[1].open}, (
            "the old connection closes after the last response"
        )


async def test_a_retired_connection_is_closed_with_the_cluster(scripted: ScriptedCluster) -> None:
    scripted[1].script["ListGroups"] = answer_list_groups
    scripted[1].script["Heartbeat"] = no_answer
    SaslBroker(scripted, 1, plain, lifetime=60.0)
    async with cluster_of(scripted, **with_sasl(Plain("alice", "secret"))) as cluster:
        parked = asyncio.create_task(cluster.network.request(1, m.HeartbeatRequest(), timeout=300.0))
        abandoned = asyncio.create_task(cluster.network.request(1, m.HeartbeatRequest(), timeout=300.0))
        await asyncio.sleep(55.0)
        abandoned.cancel()
        await cluster.network.request(1, LIST_GROUPS)
    with pytest.raises(Exception, match="closed by this client"):
        await parked
    await asyncio.sleep(0.1)
    assert not scripted[1].open
