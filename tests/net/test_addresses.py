"""Host names are shown and resolved; the error of one that cannot be resolved names the destination."""

from __future__ import annotations

import asyncio
import socket
from typing import NamedTuple

import pytest

from asyncgroup.errors import ConnectError
from asyncgroup.net.addresses import host_and_port, resolve


class Place(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"the place {self.host}"


@pytest.mark.parametrize(
    ("host", "port", "shown"),
    [("kafka.example", 9092, "kafka.example:9092"), ("::1", 1, "[::1]:1"), ("a\x1b[31m", 1, "a\\x1b[31m:1")],
)
def test_hosts_in_messages(host: str, port: int, shown: str) -> None:
    assert host_and_port(host, port) == shown


async def _resolved(place: Place, with_connector: bool = False) -> list[tuple[str, int]]:
    async def connector(_host: str, _port: int) -> socket.socket:
        raise AssertionError("names are not resolved by connecting")

    deadline = asyncio.get_running_loop().time() + 30.0
    return await resolve(place, deadline, connector if with_connector else None)


async def test_an_address_is_itself() -> None:
    assert await _resolved(Place("127.0.0.1", 9092)) == [("127.0.0.1", 9092)]
    assert await _resolved(Place("no.such.name.invalid", 9092), with_connector=True) == [
        ("no.such.name.invalid", 9092)
    ]


@pytest.mark.parametrize("port", [0, -1, 65_536])
async def test_ports_that_do_not_exist(port: int) -> None:
    for with_connector in (False, True):
        with pytest.raises(
            ConnectError, match=f"the place 127.0.0.1: port {port} is not allowed: 1 to 65535"
        ):
            await _resolved(Place("127.0.0.1", port), with_connector)


async def test_a_name_that_no_resolver_takes() -> None:
    with pytest.raises(ConnectError, match=r"the place .*: the host name cannot be resolved: "):
        await _resolved(Place("a" * 64 + ".example", 9092))
