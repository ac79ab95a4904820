"""The journal of a member of the chaos story: lines in a file that survive a kill, written by it and read by the checker.

Times are `time.monotonic()`, which on Linux is one clock for all processes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

__all__ = ["Delivery", "Journal", "Life", "SessionLog", "read_life"]


class Journal:
    """Appends lines with their time; each is written to the file at once, so that SIGKILL loses none."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, *words: object) -> None:
        """Append one line."""
        self.write_all([words])

    def write_all(self, lines: list[tuple[object, ...]]) -> None:
        """Append lines that happen at the same time."""
        now = f"{time.monotonic():.6f}"
        os.write(self._file, "".join(f"{now} {' '.join(map(str, words))}\n" for words in lines).encode())


class Delivery(NamedTuple):
    """A record that a handler got."""

    partition: int
    offset: int
    value: int
    at: float


@dataclass
class SessionLog:
    """One session of a member: from `begin` to `end` (None while it lasts, or if its process was killed)."""

    member_id: str
    generation_id: int
    begin: float
    end: float | None = None
    cause: str = ""
    """The class name of the session's cause."""
    text: str = ""
    """The message of the session's cause."""
    starts: dict[int, int] = field(default_factory=dict)
    """The offset at which each partition's claim began."""
    committed: dict[int, int] = field(default_factory=dict)
    """The offset that was last committed for each partition."""
    failed_commits: list[str] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)


@dataclass
class Life:
    """One process of a member, from start to end."""

    name: str
    pid: int = 0
    begin: float = 0.0
    closing: float | None = None
    closed: float | None = None
    sockets_left: int = 0
    tasks_left: int = 0
    sessions: list[SessionLog] = field(default_factory=list)


def read_life(path: Path) -> Life:
    """Read the journal of one process; a last line that was cut off by SIGKILL is left out."""
    life = Life(path.stem)
    for at, kind, rest in _lines(path):
        session = life.sessions[-1] if life.sessions else None
        words = rest.split(" ")
        match kind:
            case "start":
                life.begin, life.pid = at, int(words[0])
            case "session":
                life.sessions.append(SessionLog(words[0], int(words[1]), at, starts=_offsets(words[2:])))
            case "record":
                assert session is not None
                session.deliveries.append(Delivery(int(words[0]), int(words[1]), int(words[2]), at))
            case "committed":
                if session is not None:
                    session.committed |= _offsets(words)
            case "uncommitted":
                if session is not None:
                    session.failed_commits.append(rest)
            case "end":
                assert session is not None
                session.end, session.cause = at, words[0]
                session.text = " ".join(words[1:])
            case "closing":
                life.closing = at
            case "closed":
                life.closed, life.sockets_left, life.tasks_left = at, int(words[0]), int(words[1])
            case _:
                raise ValueError(f"{path}: unknown line {kind!r}")
    return life


def _offsets(words: list[str]) -> dict[int, int]:
    """Return offsets by partition from words such as `3:120`."""
    pairs = (word.split(":") for word in words if word)
    return {int(partition): int(offset) for partition, offset in pairs}


def _lines(path: Path) -> Iterator[tuple[float, str, str]]:
    for line in path.read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            at, kind, *rest = line.rstrip("\n").split(" ", 2)
            yield float(at), kind, rest[0] if rest else ""
