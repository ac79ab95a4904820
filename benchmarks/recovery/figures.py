"""Delays, commit gaps and losses of the `recovery` benchmark, computed from an outcome; and the table."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.common import wrap
from benchmarks.recovery.faults import FAULTS
from benchmarks.recovery.scenario import COMMIT_INTERVAL, Outcome

__all__ = ["CLIENTS", "COLUMNS", "Measurement", "Summary", "caption", "rows", "summarize"]

CLIENTS: Final = ("asyncgroup", "aiokafka", "confluent-kafka")
LATE: Final = 0.1
"""Seconds from acknowledged to handled beyond which a record counts as late."""
NANO: Final = 1e9
COLUMNS: Final = (
    "client",
    "worst delay",
    "by round",
    "late records",
    "pause",
    "by round",
    "commit gap",
    "by round",
    "twice",
    "lost",
)


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One client under one fault, for records acknowledged since the fault began.

    `worst` is the longest time from the acknowledgement to the handler, in seconds; `late` counts records delayed by
    more than `LATE`. `pause` is the longest time in which no record of some partition was received, also because there was
    no leader to write to; `pauses` are those of each partition. They begin at the fault at the earliest if it kills members,
    as it is not known what those received. `commit_gap` is the longest time between two successful commits, in seconds.
    `twice` counts repeated receipts of a record, `lost` acknowledged records that were never received.
    """

    fault: str
    client: str
    round: int
    records: int
    worst: float
    late: int
    pause: float
    pauses: dict[int, float]
    commit_gap: float
    twice: int
    lost: int

    @classmethod
    def of(cls, fault: str, client: str, index: int, outcome: Outcome) -> Measurement:
        """Create a measurement from a client's receipts and the producer's acknowledgements."""
        first: dict[tuple[int, int], int] = {}
        receipts = outcome.receipts[client]
        for partition, offset, at in receipts:
            place = partition, offset
            first[place] = min(at, first.get(place, at))
        since = {place: at for place, at in outcome.acknowledged.items() if at >= outcome.begin}
        known_since = outcome.begin if FAULTS[fault].members > 1 else 0
        pauses = _pauses(receipts, outcome.begin, outcome.end, known_since)
        delays = [max(0, first[place] - at) / NANO for place, at in since.items() if place in first]
        return cls(
            fault=fault,
            client=client,
            round=index,
            records=len(since),
            worst=max(delays, default=0.0),
            late=sum(delay > LATE for delay in delays),
            pause=max(pauses.values(), default=0.0),
            pauses=pauses,
            commit_gap=longest_gap(outcome.commits[client], outcome.begin, outcome.end),
            twice=len(receipts) - len(first),
            lost=len(since) - len(delays),
        )


def _pauses(
    receipts: Sequence[tuple[int, int, int]], begin: int, end: int, known_since: int
) -> dict[int, float]:
    """Return the longest time in seconds between two records of each partition, without receipts before `known_since`."""
    times: dict[int, list[int]] = {}
    for partition, _, at in receipts:
        own = times.setdefault(partition, [])
        if at >= known_since:
            own.append(at)
    return {partition: longest_gap(sorted(times[partition]), begin, end) for partition in sorted(times)}


def longest_gap(times: Sequence[int], begin: int, end: int) -> float:
    """Return the longest time in seconds between two of `times` (sorted) that overlaps the window.

    The end of the window counts as a time, so an open gap ends there.
    """
    before = max((at for at in times if at <= begin), default=begin)
    within = [at for at in times if begin < at < end]
    points = [before, *within, end]
    return max(later - earlier for earlier, later in itertools.pairwise(points)) / NANO


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A client under a fault over all rounds: medians, and the figures of each round; counts are sums."""

    fault: str
    client: str
    worst: float
    worst_by_round: list[float]
    late: int
    pause: float
    pause_by_round: list[float]
    commit_gap: float
    commit_gap_by_round: list[float]
    twice: int
    lost: int
    records: int


def summarize(measurements: Sequence[Measurement]) -> list[Summary]:
    """Return one summary per fault and client, in the order of the table."""
    return [
        _summary(fault, client, own)
        for fault in FAULTS
        for client in CLIENTS
        if (own := [each for each in measurements if (each.fault, each.client) == (fault, client)])
    ]


def _summary(fault: str, client: str, own: Sequence[Measurement]) -> Summary:
    def total(count: Callable[[Measurement], int]) -> int:
        return sum(map(count, own))

    return Summary(
        fault=fault,
        client=client,
        worst=statistics.median(each.worst for each in own),
        worst_by_round=[each.worst for each in own],
        late=total(lambda each: each.late),
        pause=statistics.median(each.pause for each in own),
        pause_by_round=[each.pause for each in own],
        commit_gap=statistics.median(each.commit_gap for each in own),
        commit_gap_by_round=[each.commit_gap for each in own],
        twice=total(lambda each: each.twice),
        lost=total(lambda each: each.lost),
        records=total(lambda each: each.records),
    )


def rows(summaries: Sequence[Summary], fault: str) -> list[list[str]]:
    """Return the table rows of one fault, its title first."""
    return [
        [FAULTS[fault].title, *[""] * (len(COLUMNS) - 1)],
        *(
            [
                each.client,
                f"{each.worst:.2f}",
                _listed(each.worst_by_round),
                f"{each.late:,}",
                f"{each.pause:.2f}",
                _listed(each.pause_by_round),
                f"{each.commit_gap:.2f}",
                _listed(each.commit_gap_by_round),
                f"{each.twice:,}",
                f"{each.lost:,}",
            ]
            for each in summaries
            if each.fault == fault
        ),
    ]


def _listed(figures: Sequence[float]) -> str:
    return " ".join(f"{figure:.2f}" for figure in figures)


def caption(options: Mapping[str, object]) -> str:
    """Return the explanation of the columns."""
    return wrap(
        f"{options['rate']} records/s over {options['partitions']} partitions on three brokers; heartbeats every "
        f"{options['heartbeat']:g} s, session timeout {options['session_timeout']:g} s, commits every {COMMIT_INTERVAL:g} s; "
        f"{options['rounds']} rounds. All clients run at the same time under the same fault, each in its own group and "
        "process; two brokers lead the partitions, the third is the group coordinator. Seconds, medians of the rounds. Worst "
        "delay: from the producer's acknowledgement to the handler, of records acknowledged since the fault began. Late: "
        f"records delayed by more than {LATE:g} s. Pause: longest time without a record of some partition, which includes the producer's. Commit gap: longest time without a successful commit. Twice: records "
        "received more than once. Lost: acknowledged, never received. The clients' retry and backoff settings are their "
        "defaults."
    )
