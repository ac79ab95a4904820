"""Summaries of the measurements: medians over the rounds, and comparisons within a round."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from benchmarks.queue.cases import CASES, CLIENTS, REFERENCES
from benchmarks.queue.measure import Measurement

__all__ = ["Summary", "summarize"]


class Summary(NamedTuple):
    """The figures of one client in one case: medians; None where a figure does not apply or could not be measured."""

    client: str
    case: str
    rate: float
    """Healthy records per second."""
    lowest: float
    highest: float
    cpu: float | None
    """Microseconds of CPU time per record."""
    bound: float | None
    """Records per second that handlers reach that only sleep."""
    share: float | None
    """The rate as a share of the bound."""
    ratio: float | None
    """The rate over that of the reference client (`REFERENCES`)."""
    cost: float | None
    """The share of the rate that is lost compared to the baseline case, of the same client."""
    failed: float
    """Failed deliveries of poison records."""
    p50: float | None
    p99: float | None
    """Seconds from the production of a fresh record to the start of its handler."""
    handled: float
    """Healthy records handled."""
    records: int
    peak: float
    """Bytes of resident memory at its peak."""
    over: float | None
    """The same over that of the baseline case, in the case `blocked`."""
    committed: float
    """Records below the committed offsets afterwards."""


def summarize(measurements: Sequence[Measurement], concurrency: int) -> list[Summary]:
    """Return one summary per case and client, in the order of the tables."""
    found = {(each.client, each.case, each.round): each for each in measurements}
    return [
        _summary(own, found, concurrency)
        for case in CASES
        for client in CLIENTS
        if (own := [each for each in measurements if (each.client, each.case) == (client, case)])
    ]


def _summary(
    own: Sequence[Measurement], found: Mapping[tuple[str, str, int], Measurement], concurrency: int
) -> Summary:
    client, case = own[0].client, CASES[own[0].case]

    def median(value: Callable[[Measurement], float]) -> float:
        return statistics.median(map(value, own))

    def pairs(other: str, name: str) -> list[tuple[Measurement, Measurement]]:
        both = ((each, found.get((other, name, each.round))) for each in own)
        return [(each, base) for each, base in both if base is not None]

    def compared(other: str, name: str) -> float | None:
        return _median_of(each.rate / base.rate for each, base in pairs(other, name) if base.rate)

    def over(name: str) -> float | None:
        return _median_of(each.peak - base.peak for each, base in pairs(client, name))

    is_work = case.kind == "work"
    rate, bound = median(lambda each: each.rate), case.bound(concurrency) if is_work else None
    kept = compared(client, case.baseline) if case.baseline is not None and is_work else None
    return Summary(
        client=client,
        case=case.name,
        rate=rate,
        lowest=min(each.rate for each in own),
        highest=max(each.rate for each in own),
        cpu=_median_of(each.cpu_per_record for each in own if each.cpu_per_record is not None),
        bound=bound,
        share=rate / bound if bound else None,
        ratio=compared(REFERENCES[case.name], case.name) if case.name in REFERENCES else None,
        cost=1 - kept if kept is not None else None,
        failed=median(lambda each: each.failed),
        p50=_median_of(each.p50 for each in own if each.p50 is not None),
        p99=_median_of(each.p99 for each in own if each.p99 is not None),
        handled=median(lambda each: each.handled),
        records=own[0].records,
        peak=median(lambda each: each.peak),
        over=over(case.baseline) if case.baseline is not None and case.kind == "block" else None,
        committed=median(lambda each: each.committed),
    )


def _median_of(values: Iterable[float]) -> float | None:
    found = list(values)
    return statistics.median(found) if found else None
