"""Many clients that connect at once, on real sockets: the listen backlog has room for all of them."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest

from asyncgroup.broker import EmbeddedCluster

pytestmark = pytest.mark.real

CLIENTS = 120
"""More than asyncio's default backlog (100), fewer than the smallest limit of an operating system (128)."""


async def test_many_clients_connect_before_the_loop_accepts_one(cluster: EmbeddedCluster) -> None:
    host, _, port = cluster.bootstrap_servers.rpartition(":")
    with ExitStack() as stack:
        for _ in range(CLIENTS):
            # The loop does not run in between, so all connections wait in the backlog. Without room there, a client
            # would wait a second for its next SYN.
            stack.enter_context(socket.create_connection((host, int(port)), timeout=0.9))
