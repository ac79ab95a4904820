"""Summaries of `benchmarks.pulsar`: medians, ranges, and ratios to other clients within a round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from benchmarks.figures import Spread
from benchmarks.pulsar.cases import ASYNCIO, CASES, CLIENTS, GOALS, OWN, QUEUES, SYNC, Goal

__all__ = ["Measurement", "PulsarSummary", "goals_of", "summarize"]

_MICRO: Final = 1e6


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One client in one case and round; times in seconds, None for what the case does not measure.

    `memory` is the growth of the process in bytes, `backlog` the entries that were not acknowledged at the end.
    """

    client: str
    case: str
    round: int
    counted: int
    seconds: float
    cpu_seconds: float
    p50: float | None
    p99: float | None
    memory: int | None
    backlog: int | None

    @property
    def rate(self) -> float | None:
        """Messages per second."""
        return self.counted / self.seconds if self.counted and self.seconds else None

    @property
    def cpu(self) -> float | None:
        """CPU microseconds per message, of all threads."""
        return self.cpu_seconds / self.counted * _MICRO if self.counted and self.cpu_seconds else None

    @property
    def per_core(self) -> float | None:
        """Messages per CPU second."""
        return _MICRO / self.cpu if self.cpu else None


FIGURES: Final[dict[str, Callable[[Measurement], float | None]]] = {
    "rate": lambda each: each.rate,
    "cpu": lambda each: each.cpu,
    "per_core": lambda each: each.per_core,
    "p50": lambda each: each.p50,
    "p99": lambda each: each.p99,
    "memory": lambda each: each.memory,
}


class PulsarSummary(NamedTuple):
    """The figures of one client in one case; a figure or ratio that was not measured is missing."""

    client: str
    case: str
    figures: dict[str, Spread]
    to_asyncio: dict[str, Spread]
    """Ratios to `pulsar.asyncio`; of a work queue to asyncgroup's consumer."""
    to_sync: dict[str, Spread]
    backlog: int

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        found = self._asdict()
        for key in ("figures", "to_asyncio", "to_sync"):
            found[key] = {name: spread._asdict() for name, spread in found[key].items()}
        return found


def _spreads(own: Sequence[Measurement]) -> dict[str, Spread]:
    found = {}
    for name, figure in FIGURES.items():
        if values := [value for each in own if (value := figure(each)) is not None]:
            found[name] = Spread.of(values)
    return found


def _ratios(own: Sequence[Measurement], others: Sequence[Measurement]) -> dict[str, Spread]:
    of_round = {each.round: each for each in others}
    found = {}
    for name, figure in FIGURES.items():
        values = []
        for each in own:
            other = of_round.get(each.round)
            value, base = figure(each), figure(other) if other else None
            if value is not None and base:
                values.append(value / base)
        if values:
            found[name] = Spread.of(values)
    return found


def summarize(measurements: Sequence[Measurement]) -> list[PulsarSummary]:
    """Return one summary for each case and client, in the order of `CASES` and `CLIENTS`."""

    def of(client: str, case: str) -> list[Measurement]:
        return [each for each in measurements if (each.client, each.case) == (client, case)]

    found = []
    for case in CASES:
        for client in CLIENTS:
            if own := of(client, case):
                base = of(OWN, "receive") if case in QUEUES else of(ASYNCIO, case)
                sync = of(SYNC, "receive" if case in QUEUES else case)
                backlog = max(each.backlog or 0 for each in own)
                found.append(
                    PulsarSummary(
                        client, case, _spreads(own), _ratios(own, base), _ratios(own, sync), backlog
                    )
                )
    return found


def goals_of(summaries: Sequence[PulsarSummary]) -> list[tuple[Goal, Spread]]:
    """Return the goals whose ratio was measured, with the ratio."""
    found = []
    for goal in GOALS:
        for each in summaries:
            if (each.client, each.case) == (OWN, goal.case):
                ratios = each.to_asyncio if goal.other == ASYNCIO else each.to_sync
                if goal.figure in ratios:
                    found.append((goal, ratios[goal.figure]))
    return found
