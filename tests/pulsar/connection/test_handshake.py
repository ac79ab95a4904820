"""The beginning of a connection: CONNECT, its answers, and every way in which it fails."""

from __future__ import annotations

import asyncio

import pytest

from asyncgroup.errors import AuthenticationError, ConnectError
from asyncgroup.pulsar.service_url import BrokerAddress
from asyncgroup.pulsar.wire import commands as c
from asyncgroup.pulsar.wire.frames import FRAME_HEADROOM, encode_frame
from asyncgroup.testing import Network
from asyncgroup.version import __version__
from tests.pulsar.scripted import PORT, Call, ScriptedPulsar, late, no_answer, refuse
from tests.pulsar.support import HOST, connected, last_id, now


async def test_connect_says_who_this_is_and_what_it_understands(pulsar: ScriptedPulsar) -> None:
    async with connected() as connection:
        assert connection.server_version == "Pulsar scripted"
        assert connection.features.supports_get_partitioned_metadata_without_auto_creation
        assert connection.max_message_size == 5 << 20
    (sent,) = pulsar.commands(c.CommandConnect)
    assert sent.client_version == f"asyncgroup-{__version__}"
    assert sent.protocol_version == 21
    assert (sent.auth_method_name, sent.auth_data, sent.proxy_to_broker_url) == (None, None, None)
    assert sent.feature_flags is not None
    assert sent.feature_flags.supports_auth_refresh
    assert sent.feature_flags.supports_partial_producer


async def test_behind_a_proxy_connect_names_the_broker(pulsar: ScriptedPulsar) -> None:
    async with connected(logical=BrokerAddress("broker-7", 6650)) as connection:
        assert repr(connection) == (
            "<PulsarConnection broker-7:6650 through 10.0.0.1:6650: 0 producers, 0 consumers>"
        )
    (sent,) = pulsar.commands(c.CommandConnect)
    assert sent.proxy_to_broker_url == "broker-7:6650"


async def test_the_broker_chooses_the_largest_message(pulsar: ScriptedPulsar) -> None:
    pulsar.first.max_message_size = 1000
    async with connected() as connection:
        assert connection.max_message_size == 1000
        assert connection.protocol.max_size == 1000 + FRAME_HEADROOM


@pytest.mark.parametrize("size", [None, 0, -1])
async def test_without_a_valid_size_it_is_the_default(pulsar: ScriptedPulsar, size: int | None) -> None:
    pulsar.first.script[c.CommandConnect] = lambda call: call.answer(
        c.CommandConnected(server_version="", max_message_size=size)
    )
    async with connected() as connection:
        assert connection.max_message_size == 5 << 20
        assert connection.features == c.FeatureFlags()


@pytest.mark.parametrize(("code", "name"), [(3, "AuthenticationError"), (4, "AuthorizationError")])
async def test_a_refused_credential_raises_at_once(pulsar: ScriptedPulsar, code: int, name: str) -> None:
    pulsar.first.script[c.CommandConnect] = refuse(code, "Failed to authenticate")
    with pytest.raises(
        AuthenticationError, match=rf"10.0.0.1:6650: CONNECT: {name} \({code}\): Failed to auth"
    ):
        await connected().__aenter__()
    assert now() < 1


async def test_another_refusal_is_an_error_of_the_connection(pulsar: ScriptedPulsar) -> None:
    pulsar.first.script[c.CommandConnect] = refuse(6, "Failed\nto\x1b start")
    with pytest.raises(ConnectError, match=r"ServiceNotReady \(6\): Failed\\nto\\x1b start"):
        await connected().__aenter__()


async def test_a_broker_that_does_not_answer(pulsar: ScriptedPulsar) -> None:
    pulsar.first.script[c.CommandConnect] = no_answer
    with pytest.raises(ConnectError, match=r"no answer in time .*is it a TLS port"):
        await connected(connect_timeout=7.0).__aenter__()
    assert now() == pytest.approx(7.0)
    await asyncio.sleep(0.1)
    assert pulsar.connections == [], "the connection that was half open is closed"


async def test_a_slow_broker_is_waited_for(pulsar: ScriptedPulsar) -> None:
    pulsar.first.script[c.CommandConnect] = late(6.0)
    async with connected(connect_timeout=7.0):
        assert now() == pytest.approx(6.0)


async def test_a_broker_that_closes_the_connection(pulsar: ScriptedPulsar) -> None:
    pulsar.first.script[c.CommandConnect] = Call.cut
    with pytest.raises(ConnectError, match="is it a TLS port"):
        await connected().__aenter__()


async def test_a_connection_that_ends_right_after_the_answer(pulsar: ScriptedPulsar) -> None:
    def answer_and_break(call: Call) -> None:
        call.default()
        call.write(b"\0\0\0\2ab")

    pulsar.first.script[c.CommandConnect] = answer_and_break
    with pytest.raises(ConnectError, match="malformed command: a frame of 2 bytes"):
        await connected().__aenter__()


async def test_no_port_and_no_host(pulsar: ScriptedPulsar) -> None:
    with pytest.raises(ConnectError, match=r"10.9.9.9:6650: Connection refused"):
        await connected("10.9.9.9").__aenter__()
    with pytest.raises(ConnectError, match="no-such-host:6650: the host name cannot be resolved"):
        await connected("no-such-host").__aenter__()


async def test_each_address_of_a_host_name_is_tried(two_brokers: ScriptedPulsar, network: Network) -> None:
    network.hosts["pulsar"] = ["10.0.0.7", "10.0.0.1", "10.0.0.2"]
    two_brokers.first.script[c.CommandConnect] = refuse(6, "starting")
    async with connected("pulsar") as connection:
        assert connection.physical == ("pulsar", PORT)
        assert len(two_brokers["10.0.0.2"].connections) == 1
        assert two_brokers["10.0.0.1"].connections == []


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "this is an HTTP server, not a Pulsar broker"),
        (b"\x15\x03\x03\x00\x02\x02\x0a", "the listener expects TLS: use pulsar"),
        (b"\x00\x00\x00\x02ab", "malformed command: a frame of 2 bytes has no command"),
        (
            b"\x00\x00\x00\x06\x00\x00\x00\x09ab",
            "malformed command: the command of 9 bytes does not fit",
        ),
        (b"\x7f\x00\x00\x00", "frame size of 2130706432 bytes; 0 to 5253120 are allowed"),
    ],
)
async def test_other_protocols_and_malformed_answers(pulsar: ScriptedPulsar, data: bytes, text: str) -> None:
    pulsar.first.script[c.CommandConnect] = lambda call: call.write(data)
    with pytest.raises(ConnectError, match=text):
        await connected().__aenter__()


async def test_unknown_commands_before_the_answer_are_ignored(pulsar: ScriptedPulsar) -> None:
    def answer(call: Call) -> None:
        call.write(bytes.fromhex("0000000c 00000008 087b da0703 616263"))  # type 123
        call.default()

    pulsar.first.script[c.CommandConnect] = answer
    async with connected() as connection:
        assert connection.unknown_commands == 1


async def test_answers_after_the_first_one_are_ignored(pulsar: ScriptedPulsar) -> None:
    async with connected() as connection:
        (end,) = pulsar.connections
        end.push(c.CommandError(request_id=c.NO_REQUEST, error=0, message="late"))
        end.push(c.CommandConnected(server_version="again", max_message_size=10))
        await connection.request("LAST_ID", last_id, timeout=5)
        assert connection.max_message_size == 5 << 20


async def test_the_answer_arrives_in_pieces(pulsar: ScriptedPulsar, network: Network) -> None:
    network.chunk_size = 3

    def answer(call: Call) -> None:
        call.default()
        call.write(encode_frame(c.CommandPing()))

    pulsar.first.script[c.CommandConnect] = answer
    async with connected() as connection:
        await asyncio.sleep(1)
        assert pulsar.commands(c.CommandPong)
        assert not connection.is_closed


@pytest.mark.parametrize("after", [0.0, 0.5, 1.5, 2.5, 4.5])
async def test_a_cancelled_attempt_leaves_nothing(
    pulsar: ScriptedPulsar, network: Network, after: float
) -> None:
    network.latency = 1.0
    pulsar.first.script[c.CommandConnect] = late(2.0)
    attempt = asyncio.create_task(connected(HOST).__aenter__())
    await asyncio.sleep(after)
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt
    await asyncio.sleep(5)
    assert pulsar.connections == []
