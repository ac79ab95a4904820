"""The journal of a process in the queue story on Pulsar: what its handlers got, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Handled", "PulsarLife", "entry_of", "partition_of", "read_pulsar_life"]


@dataclass
class Handled:
    """One delivery that a handler got."""

    life: str
    number: int
    """The message's value."""
    attempt: int
    message_id: str
    begin: float
    end: float | None = None
    """When it was acked or nacked, or its handler ended; None if its process was killed."""
    acked: float | None = None
    """When it was acknowledged, or its copy was in the dead letter topic."""
    nacked: bool = False
    durable: float | None = None
    """When `ack(durable=True)` returned."""
    is_dead: bool = False
    is_overtaken: bool = False
    """Whether the next delivery in this process began before its end: modes in order repeat all after a failed message."""

    def __str__(self) -> str:
        end = "-" if self.end is None else f"{self.end:.3f}"
        return f"{self.number} ({self.message_id}), attempt {self.attempt} in {self.life} from {self.begin:.3f} to {end}"


def partition_of(each: Handled) -> int:
    """Return the partition of a delivery."""
    return int(each.message_id.split(":")[2])


def entry_of(each: Handled) -> tuple[int, int]:
    """Return the ledger and entry of a delivery: the messages of a batch have the same."""
    ledger, entry = each.message_id.split(":")[:2]
    return int(ledger), int(entry)


@dataclass
class PulsarLife:
    """One process, from start to end."""

    name: str
    closed: float | None = None
    deliveries: list[Handled] = field(default_factory=list)
    detached: list[tuple[float, int]] = field(default_factory=list)
    """When it saw that the broker of a partition was lost."""
    permits: dict[int, int] = field(default_factory=dict)
    """At its end: by partition, the permits that it counts as open at the broker."""


def read_pulsar_life(path: Path) -> PulsarLife:
    """Read the journal of one process; a last line that SIGKILL cut off is left out."""
    life = PulsarLife(path.stem)
    current: dict[int, Handled] = {}  # the last delivery of each message
    with path.open(encoding="ascii") as lines:
        for line in lines:
            if line.endswith("\n"):
                at, kind, *words = line.split()
                _read(life, current, float(at), kind, words)
    return life


def _read(life: PulsarLife, current: dict[int, Handled], at: float, kind: str, words: list[str]) -> None:
    if kind == "start":
        return
    if kind == "closed":
        life.closed = at
        return
    number = int(words[0])
    if kind == "detached":
        life.detached.append((at, number))
        return
    if kind == "permits":
        life.permits[number] = int(words[1])
        return
    if kind == "begin":
        if (before := current.get(number)) is not None and before.end is None:
            before.end, before.is_overtaken = at, True
        current[number] = Handled(life.name, number, int(words[1]), words[2], at)
        life.deliveries.append(current[number])
        return
    delivery = current[number]
    if delivery.end is None:
        delivery.end = at
    match kind:
        case "acked":
            delivery.acked = at
        case "dead":
            delivery.acked, delivery.is_dead = at, True
        case "nacked":
            delivery.nacked = True
        case "durable":
            delivery.durable = at
        case "left":
            pass
        case _:
            raise ValueError(f"{life.name}: unknown line {kind!r}")
