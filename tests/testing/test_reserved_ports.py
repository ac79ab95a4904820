from __future__ import annotations

import socket
import sys

import pytest

from asyncgroup.testing.java_server.ports import ReservedPorts

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="ports can be reserved on Linux only")


def test_ports_differ() -> None:
    ports = ReservedPorts(20)
    assert len(set(ports.numbers)) == 20
    ports.close()


@linux_only
def test_a_server_can_bind_to_a_reserved_port_repeatedly() -> None:
    ports = ReservedPorts(1)
    address = ("127.0.0.1", ports.numbers[0])
    for _ in range(2):
        with socket.create_server(address), socket.create_connection(address, timeout=5):
            pass
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, timeout=5)
    ports.close()


@linux_only
def test_other_sockets_cannot_bind_to_a_reserved_port() -> None:
    ports = ReservedPorts(1)
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", ports.numbers[0]))  # without SO_REUSEADDR, as the near end of a connection
    ports.close()
    with socket.socket() as other:
        other.bind(("127.0.0.1", ports.numbers[0]))
