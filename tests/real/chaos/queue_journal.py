"""The journals of the queue story, as `queueing` writes them. Times are `time.monotonic()`, one clock for all processes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeAlias

__all__ = ["Commit", "Ended", "Handled", "Place", "QueueLife", "read_queue_life"]

Place: TypeAlias = tuple[int, int]
"""Partition and offset of a record."""


@dataclass
class Handled:
    """One delivery that a handler got."""

    life: str
    place: Place
    number: int
    """The record's value."""
    attempt: int
    begin: float
    end: float | None = None
    """When it was acked or nacked, or its handler ended; None if its process was killed."""
    acked: float | None = None
    nacked: bool = False
    durable: float | None = None
    """When `ack(durable=True)` returned."""


class Commit(NamedTuple):
    """One partition in a commit that was answered."""

    at: float
    sent: float
    """When the last commit request before the answer was written."""
    partition: int
    offset: int
    metadata: str


class Ended(NamedTuple):
    """The end of a session."""

    at: float
    cause: str
    """The class name of the cause."""
    text: str


@dataclass
class QueueLife:
    """One process, from start to end."""

    name: str
    begin: float = 0.0
    closed: float | None = None
    last: float = 0.0
    """The time of the last line."""
    deliveries: list[Handled] = field(default_factory=list)
    dead: list[tuple[float, Place, int]] = field(default_factory=list)
    """Copies to the dead letter topic: time, place and number of the record."""
    sent: list[float] = field(default_factory=list)
    """When commit requests were written."""
    commits: list[Commit] = field(default_factory=list)
    failed: list[tuple[float, str]] = field(default_factory=list)
    """Commits that failed for a partition: time and errors."""
    ends: list[Ended] = field(default_factory=list)


def read_queue_life(path: Path) -> QueueLife:
    """Read the journal of one process; a last line that SIGKILL cut off is left out."""
    life = QueueLife(path.stem)
    current: dict[Place, Handled] = {}  # the last delivery of each record
    for at, kind, words in _lines(path):
        life.last = at
        match kind:
            case "start":
                life.begin = at
            case "begin":
                partition, offset, number, attempt = map(int, words)
                place = partition, offset
                current[place] = Handled(life.name, place, number, attempt, at)
                life.deliveries.append(current[place])
            case "acked" | "nacked" | "left" | "durable":
                _end(current[int(words[0]), int(words[1])], kind, at)
            case "dead":
                life.dead.append((at, (int(words[0]), int(words[1])), int(words[2])))
            case "sent":
                life.sent.append(at)
            case "committed":
                sent = life.sent[-1] if life.sent else at
                life.commits += (_commit(at, sent, word) for word in words)
            case "uncommitted":
                life.failed.append((at, " ".join(words)))
            case "end":
                life.ends.append(Ended(at, words[0], " ".join(words[1:])))
            case "closed":
                life.closed = at
            case _:
                raise ValueError(f"{path}: unknown line {kind!r}")
    return life


def _end(delivery: Handled, kind: str, at: float) -> None:
    if delivery.end is None:
        delivery.end = at
    if kind == "acked":
        delivery.acked = at
    elif kind == "nacked":
        delivery.nacked = True
    elif kind == "durable":
        delivery.durable = at


def _commit(at: float, sent: float, word: str) -> Commit:
    partition, offset, metadata = word.split(":", 2)
    return Commit(at, sent, int(partition), int(offset), metadata)


def _lines(path: Path) -> Iterator[tuple[float, str, list[str]]]:
    with path.open(encoding="ascii", errors="backslashreplace") as lines:
        for line in lines:
            if line.endswith("\n"):
                at, kind, *words = line.rstrip("\n").split(" ")
                yield float(at), kind, words
