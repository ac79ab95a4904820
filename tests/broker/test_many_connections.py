"""A crowd that connects at once, on real sockets: nobody is left to try again a second later."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest

from asyncgroup.broker import EmbeddedCluster

CROWD = 120
"""More than asyncio lets wait (100), fewer than any system does (128)."""


@pytest.mark.asyncio
async def test_a_crowd_connects_before_the_loop_accepts_anyone() -> None:
    async with EmbeddedCluster() as cluster:
        host, _, port = cluster.bootstrap_servers.rpartition(":")
        with ExitStack() as stack:
            for _ in range(CROWD):
                # no turn of the loop in between, so all wait; one that finds no room would wait for its second SYN
                stack.enter_context(socket.create_connection((host, int(port)), timeout=0.9))
