"""Processes of a story that are killed and started again, and the brokers and settings that such stories have in common."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from asyncgroup.testing.apache_kafka import ApacheKafka
from tests.stories.admin import Admin

__all__ = ["KILLS", "PARTITIONS", "PROTOCOLS", "RECORDS", "Processes", "brokers", "names_of"]

ROOT: Final = Path(__file__).parents[3]
RECORDS: Final = int(os.environ.get("ASYNCGROUP_CHAOS_RECORDS", "100000"))
KILLS: Final = 20
PARTITIONS: Final = 6
READY_LIMIT: Final = 60.0
CLOSE_LIMIT: Final = 60.0

PROTOCOLS: Final[Mapping[str, dict[str, Any]]] = {
    "eager": {"assignors": ["range"], "session_timeout": 6.0},
    "cooperative": {"assignors": ["cooperative-sticky"], "session_timeout": 6.0},
    "consumer": {"group_protocol": "consumer", "session_timeout": None, "heartbeat_interval": None},
}


def names_of(protocol: str) -> list[str]:
    """Return the names of three processes; with a classic protocol one of them is a static member."""
    return ["a", "b", "static-c" if protocol != "consumer" else "c"]


@asynccontextmanager
async def brokers(
    nodes: int, more: Mapping[str, object] = MappingProxyType({})
) -> AsyncIterator[tuple[ApacheKafka, Admin]]:
    """Start nodes whose sessions of the consumer protocol are short; `more` are further properties."""
    sessions = {
        "group.consumer.session.timeout.ms": 6000,
        "group.consumer.min.session.timeout.ms": 6000,
        "group.consumer.heartbeat.interval.ms": 1000,
        "group.consumer.min.heartbeat.interval.ms": 1000,
    }
    async with ApacheKafka(nodes, properties={**sessions, **more}) as kafka:
        admin = Admin(kafka.bootstrap_servers)
        async with admin.cluster:
            yield kafka, admin


class Processes:
    """The processes of a story by name; their errors are in files of `directory`."""

    def __init__(self, directory: Path, protocol: str = "consumer") -> None:
        self._directory = directory
        self._config = PROTOCOLS[protocol]
        self.running: dict[str, asyncio.subprocess.Process] = {}

    def config_of(self, name: str) -> dict[str, Any]:
        """Return the configuration of a member; one whose name begins with `static` has it as instance id."""
        return self._config | ({"group_instance_id": name} if name.startswith("static") else {})

    async def launch(self, name: str, module: str, settings: Any, errors: str) -> None:
        """Start a process of a module, and wait until it is ready; `errors` is the name of its file without a suffix."""
        command = (sys.executable, "-m", f"tests.real.chaos.{module}", json.dumps(asdict(settings)))
        with (self._directory / f"{errors}.err").open("ab") as file:
            process = await asyncio.create_subprocess_exec(
                *command, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=file
            )
        self.running[name] = process
        assert process.stdout is not None
        async with asyncio.timeout(READY_LIMIT):
            ready = await process.stdout.readline()
        assert ready, self.errors(errors)

    async def end(self, name: str, errors: str) -> None:
        """SIGTERM: the process commits and leaves."""
        process = self.running.pop(name)
        process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(CLOSE_LIMIT):
                code = await process.wait()
        except BaseException:
            process.kill()
            raise
        assert code == 0, f"{name} ended with code {code}: {self.errors(errors)}"

    def kill_all(self) -> None:
        """Kill what still runs."""
        for process in self.running.values():
            if process.returncode is None:
                process.kill()

    def errors(self, name: str) -> str:
        """Return the end of a file of errors."""
        return (self._directory / f"{name}.err").read_text(errors="replace")[-3000:]
