"""Compare the flights that arrived with the figures of the CSV."""

from __future__ import annotations

from asyncgroup.cli.demo.flights import CarrierFigures, Figures
from asyncgroup.cli.demo.sinks import FoundFlights

__all__ = ["differences", "verdict"]


def differences(expected: Figures, found: FoundFlights) -> list[str]:
    """Describe the differences; empty if every flight arrived exactly once with the right figures."""
    texts = []
    missing = expected.flights - found.distinct
    if missing > 0 or found.missing:
        texts.append(f"{missing:,} flights are missing: rows {_examples(found.missing, missing)} of the CSV")
    more = found.figures.flights - found.distinct
    if more > 0:
        texts.append(
            f"{more:,} flights are there more than once: rows {_examples(found.twice, more)} of the CSV"
        )
    nothing = CarrierFigures()
    for carrier in sorted(expected.carriers.keys() | found.figures.carriers.keys()):
        ours = found.figures.carriers.get(carrier, nothing)
        theirs = expected.carriers.get(carrier, nothing)
        for name in ("flights", "delays", "delay_sum"):
            if getattr(ours, name) != getattr(theirs, name):
                what = name.replace("_", " ")
                texts.append(
                    f"{carrier}: {what} {getattr(ours, name):,}, in the CSV {getattr(theirs, name):,}"
                )
    return texts


def verdict(expected: Figures, found: FoundFlights, wrong: list[str]) -> str:
    """Return the last line of the demonstration's output."""
    share = f"{found.distinct:,} of {expected.flights:,} flights"
    return f"{share}, each exactly once" if not wrong else f"{share}; something went wrong, see above"


def _examples(rows: list[int], count: int) -> str:
    return ", ".join(map(str, rows)) + (", …" if count > len(rows) else "")
