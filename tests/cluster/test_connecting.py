"""Opening a connection: ApiVersions, and the addresses of a host name."""

from __future__ import annotations

import pytest

from asyncgroup.cluster.connecting import connect
from asyncgroup.cluster.connection import Address
from asyncgroup.errors import (
    ConnectError,
    UnsupportedVersionError,
)
from asyncgroup.hooks import Hooks
from asyncgroup.testing import Network
from asyncgroup.wire import messages as m
from tests.cluster.scripted import PORT, Call, ScriptedCluster, no_answer
from tests.cluster.support import CONFIG, connected, now

pytestmark = pytest.mark.virtual


# --- ApiVersions ------------------------------------------------------------------------------------------------------


async def test_the_newest_version_of_both_sides_is_used(scripted: ScriptedCluster) -> None:
    scripted[1].versions = {"Heartbeat": (0, 2), "Fetch": (0, 99)}
    async with connected(scripted) as connection:
        assert connection.version_for(m.HeartbeatRequest) == 2
        assert connection.version_for(m.HeartbeatRequest, highest=1) == 1
        assert connection.version_for(m.FetchRequest) == 18
        (asked,) = scripted.requests_of("ApiVersions")
        assert asked.version == 4
        assert asked.request.client_software_name == "asyncgroup"


async def test_no_version_in_common_names_both_ranges(scripted: ScriptedCluster) -> None:
    scripted[1].versions = {"Fetch": (0, 3), "Heartbeat": (3, 4)}
    async with connected(scripted) as connection:
        with pytest.raises(UnsupportedVersionError, match=r"Fetch: node 1 .* offers 0-3, .* supports 4-18"):
            connection.version_for(m.FetchRequest)
        with pytest.raises(UnsupportedVersionError, match="offers 3-4, this client supports 0-2"):
            connection.version_for(m.HeartbeatRequest, highest=2)
        connection.versions.pop(m.HeartbeatRequest.API_KEY)
        with pytest.raises(UnsupportedVersionError, match="does not offer it"):
            connection.version_for(m.HeartbeatRequest)


@pytest.mark.parametrize(("theirs", "versions"), [(3, [4, 3]), (2, [4, 2]), (0, [4, 0]), (None, [4, 0])])
async def test_api_versions_is_repeated_in_an_older_version(theirs: int | None, versions: list[int]) -> None:
    """KIP-511: the error response has version 0 and the broker's range; older brokers omit the range."""

    async with ScriptedCluster("10.0.0.1") as scripted:

        def answer(call: Call) -> None:
            refused = call.version > (theirs or 0)
            response = scripted[1].api_versions(35 if refused else 0)
            if refused:
                known = [key for key in response.api_keys if key.api_key == 18]
                known[0].max_version = theirs or 0
                response.api_keys = known if theirs is not None else []
            call.answer(response)

        scripted[1].script["ApiVersions"] = answer
        async with connected(scripted) as connection:
            assert connection.version_for(m.HeartbeatRequest) == 4
        assert [asked.version for asked in scripted.requests_of("ApiVersions")] == versions


@pytest.mark.parametrize(
    ("theirs", "versions"),
    [
        ("01 0012 0000 0002 00 00000000", [4, 0]),  # librdkafka's mock cluster
        ("", [4, 0]),
        ("00000001 0012 0000 0004", [4, 0]),
        ("00000001 0012 0000 ffff", [4, 0]),
        ("00000001 0012 0000 0003", [4, 3, 0]),
    ],
    ids=["mock cluster", "nothing", "the same version", "a negative version", "a version that it refuses"],
)
async def test_after_a_refusal_in_any_format_api_versions_is_repeated_in_version_0(
    scripted: ScriptedCluster, theirs: str, versions: list[int]
) -> None:

    def answer(call: Call) -> None:
        if call.version:
            body = call.header.correlation_id.to_bytes(4, "big") + b"\x00\x23" + bytes.fromhex(theirs)
            call.write(len(body).to_bytes(4, "big") + body)
        else:
            call.answer(scripted[1].api_versions())

    scripted[1].script["ApiVersions"] = answer
    async with connected(scripted) as connection:
        assert connection.version_for(m.HeartbeatRequest) == 4
    assert [asked.version for asked in scripted.requests_of("ApiVersions")] == versions


async def test_an_api_versions_error_names_the_broker(scripted: ScriptedCluster) -> None:
    scripted[1].script["ApiVersions"] = lambda call: call.answer(scripted[1].api_versions(42))
    with pytest.raises(UnsupportedVersionError, match=r"10\.0\.0\.1:9092.*INVALID_REQUEST \(42\)"):
        await connect(Address(1, "10.0.0.1", PORT), "control", CONFIG, Hooks())


async def test_a_retriable_api_versions_error_is_a_connect_error(scripted: ScriptedCluster) -> None:
    scripted[1].script["ApiVersions"] = lambda call: call.answer(scripted[1].api_versions(7))
    with pytest.raises(ConnectError, match=r"REQUEST_TIMED_OUT \(7\)"):
        await connect(Address(1, "10.0.0.1", PORT), "control", CONFIG, Hooks())


async def test_a_broker_that_does_not_answer_api_versions_runs_into_connect_timeout() -> None:
    async with ScriptedCluster("10.0.0.1") as scripted:
        scripted[1].script["ApiVersions"] = no_answer
        with pytest.raises(ConnectError, match=r"10\.0\.0\.1:9092"):
            await connect(Address(1, "10.0.0.1", PORT), "control", CONFIG, Hooks())
        assert now() == pytest.approx(10.0)


async def test_an_http_server_is_recognized(scripted: ScriptedCluster) -> None:
    scripted[1].script["ApiVersions"] = lambda call: call.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    with pytest.raises(ConnectError, match="HTTP server"):
        await connect(Address(1, "10.0.0.1", PORT), "control", CONFIG, Hooks())


# --- addresses --------------------------------------------------------------------------------------------------------


async def test_every_address_of_a_host_name_is_tried(network: Network) -> None:
    network.hosts["kafka"] = ["10.0.0.7", "10.0.0.8", "10.0.0.1", "10.0.0.7"]
    network.blackhole("10.0.0.8")
    async with ScriptedCluster("10.0.0.1"):
        connection = await connect(Address(1, "kafka", PORT), "control", CONFIG, Hooks())
        assert connection.is_open
        assert now() == pytest.approx(5.0), "the unreachable address gets half of the time left for two"
        await connection.aclose()


async def test_an_address_that_does_not_answer_leaves_time_for_the_next_one(network: Network) -> None:
    network.hosts["kafka"] = ["10.0.0.1", "10.0.0.2"]
    async with ScriptedCluster("10.0.0.1", "10.0.0.2") as scripted:
        scripted[1].script["ApiVersions"] = no_answer
        connection = await connect(Address(1, "kafka", PORT), "control", CONFIG, Hooks())
        assert now() == pytest.approx(5.0)
        await connection.aclose()
        assert not scripted[1].open, "the first connection was closed"


async def test_the_error_lists_every_address(network: Network) -> None:
    network.hosts["kafka"] = ["10.0.0.7", "10.0.0.8"]
    network.blackhole("10.0.0.8")
    with pytest.raises(
        ConnectError,
        match=r"kafka:9092\): 10\.0\.0\.7:9092: Connection refused; 10\.0\.0\.8:9092: no answer in time",
    ):
        await connect(Address(1, "kafka", PORT), "control", CONFIG, Hooks())
    assert now() == pytest.approx(10.0)


@pytest.mark.parametrize("host", ["nowhere.invalid", "a" * 70 + ".example", "two..dots"])
async def test_a_name_that_does_not_resolve(host: str) -> None:
    with pytest.raises(ConnectError, match="host name cannot be resolved"):
        await connect(Address(1, host, PORT), "control", CONFIG, Hooks())
