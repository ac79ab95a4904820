"""A member of the chaos story in a process of its own: `python -m tests.real.chaos.member SETTINGS` (JSON).

SIGTERM closes the group. SIGUSR1 closes all connections; SIGUSR2 closes them and refuses new ones for `outage` seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncgroup import (
    Claim,
    CommitFailedError,
    ConsumerConfig,
    ConsumerGroup,
    Handler,
    Record,
    Session,
    TopicPartition,
    in_thread,
)
from asyncgroup.group.sessions.threads import ThreadClaim
from tests.real.chaos.journal import Journal

__all__ = ["KINDS", "Settings"]

KINDS = ("records", "batches", "own-commits", "static", "in-thread")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a member; durations in seconds."""

    kind: str
    servers: str
    group_id: str
    topic: str
    journal: str
    session_timeout: float
    outage: float


class Network:
    """A connector whose connections can be closed by the test."""

    def __init__(self) -> None:
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._refused_until = float("-inf")

    async def connect(self, host: str, port: int) -> socket.socket:
        loop = asyncio.get_running_loop()
        if loop.time() < self._refused_until:
            raise ConnectionRefusedError("the network is down")
        made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        made.setblocking(False)
        try:
            await loop.sock_connect(made, (host, port))
        except BaseException:
            made.close()
            raise
        self._sockets.add(made)
        return made

    def cut(self, outage: float = 0.0) -> None:
        self._refused_until = asyncio.get_running_loop().time() + outage
        for each in list(self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


class Watch:
    """Hooks of the group that write the journal."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def on_session_start(self, session: Session) -> None:
        starts = " ".join(f"{claim.partition}:{claim.initial_offset}" for claim in session.claims)
        self._journal.write("session", session.member_id, session.generation_id, starts)

    def on_session_end(self, _session: Session, cause: BaseException) -> None:
        text = str(cause).replace("\n", " ")
        self._journal.write("end", type(cause).__name__, text)

    def on_commit(self, _group_id: str, offsets: Any, errors: Any) -> None:
        done = " ".join(
            f"{tp.partition}:{each.offset}" for tp, each in offsets.items() if tp not in (errors or {})
        )
        if done:
            self._journal.write("committed", done)
        if errors:
            self._journal.write("uncommitted", "; ".join(map(str, errors.values())).replace("\n", " "))


class Records(Handler):
    """Records and marks each record, by records or by batches, with automatic or explicit commits."""

    def __init__(self, journal: Journal, kind: str) -> None:
        self._journal = journal
        self._kind = kind

    def took(self, records: Iterable[Record]) -> None:
        self._journal.write_all(
            [("record", record.partition, record.offset, int(record.value or b"-1")) for record in records]
        )

    async def consume_claim(self, session: Session, claim: Claim) -> None:
        if self._kind in ("records", "static"):
            async for record in claim:
                self.took([record])
                claim.mark(record)
            return
        async for batch in claim.batches(max_records=200, max_wait=0.1):
            self.took(batch)
            claim.mark(batch)
            if self._kind == "own-commits":
                with contextlib.suppress(CommitFailedError):  # the next commit includes the mark
                    await session.commit()

    async def on_revoked(self, session: Session, partitions: Sequence[TopicPartition]) -> None:
        """Commit until it succeeds, while the member has time: this kind has no automatic commits."""
        while self._kind == "own-commits" and partitions:
            try:
                await session.commit()
            except CommitFailedError:
                await asyncio.sleep(0.2)
            else:
                return

    def in_thread(self, _session: Session, claim: ThreadClaim) -> None:
        for record in claim:
            self.took([record])
            claim.mark(record)


def config_of(settings: Settings, network: Network) -> ConsumerConfig:
    static = settings.kind == "static"
    return ConsumerConfig(
        client_id=f"chaos-{settings.kind}",
        auto_offset_reset="earliest",
        auto_commit=settings.kind != "own-commits",
        auto_commit_interval=0.5,
        session_timeout=settings.session_timeout,
        heartbeat_interval=1.0,
        rebalance_timeout=60.0,
        close_timeout=45.0,
        group_instance_id="static" if static else None,
        connector=network.connect,
    )


async def run(settings: Settings) -> None:
    loop = asyncio.get_running_loop()
    journal, network = Journal(Path(settings.journal)), Network()
    journal.write("start", os.getpid())
    handling = Records(journal, settings.kind)
    handler = in_thread(handling.in_thread) if settings.kind == "in-thread" else handling
    closing: list[asyncio.Task[None]] = []
    group = ConsumerGroup(
        settings.servers, settings.group_id, config_of(settings, network), hooks=[Watch(journal)]
    )

    def close() -> None:
        if not closing:
            journal.write("closing")
            closing.append(loop.create_task(group.aclose()))

    loop.add_signal_handler(signal.SIGTERM, close)
    loop.add_signal_handler(signal.SIGUSR1, network.cut)
    loop.add_signal_handler(signal.SIGUSR2, network.cut, settings.outage)
    async with group:
        print("ready", flush=True)
        await group.run(settings.topic, handler)
    await asyncio.gather(*closing)
    await asyncio.sleep(0)
    tasks = len(asyncio.all_tasks()) - 1
    journal.write("closed", sockets(), tasks)


def sockets() -> int:
    """Return the number of open internet sockets of this process; the event loop's own pair is not counted."""
    found = 0
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if str(entry.readlink()).startswith("socket:"):
                found += is_internet(int(entry.name))
    return found


def is_internet(number: int) -> bool:
    copy = socket.socket(fileno=os.dup(number))
    with copy:
        return copy.family in (socket.AF_INET, socket.AF_INET6)


if __name__ == "__main__":
    asyncio.run(run(Settings(**json.loads(sys.argv[1]))))
