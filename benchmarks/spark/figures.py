"""Summaries of the Spark benchmark: medians, and ratios within a round."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from benchmarks.figures import Spread
from benchmarks.spark.cases import BRIDGES, CASES, IDLE, LATENCY, SINKS, STREAMS

__all__ = ["BASELINES", "Measurement", "Spread", "Summary", "summarize"]

BASELINES: Final = {
    **dict.fromkeys(STREAMS, "kafka-tuned"),
    **dict.fromkeys((*BRIDGES, LATENCY), "aiokafka"),
    **dict.fromkeys((*SINKS, IDLE), "kafka"),
}
"""The client that the ratios of a case refer to."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One client in one case and round. The figures by name, None if not available:

    - sources: `rate` and `add_rate` (rows per second by trigger and by addBatch), `cpu` (seconds per million rows),
      `overhead` (seconds of a trigger outside of addBatch), all without the first batch, whose seconds are `first`;
      `rows` and `batches` include it;
    - bridges: `rate`, `cpu`, `rows`, `batches`, as for sources;
    - sinks: `rate` and `cpu` of the whole query, `rows` in the topic afterwards;
    - latency, in seconds: `total`, `worst`, and the parts `before`, `inside` and `after` the function;
    - idle: `share` of a core that Spark uses, and that the `broker` uses.
    """

    case: str
    client: str
    round: int
    figures: dict[str, float | None]


class Summary(NamedTuple):
    """A client in a case: spreads of its figures, and of their ratios to the baseline if that was measured."""

    case: str
    client: str
    figures: dict[str, Spread]
    ratios: dict[str, Spread]


def summarize(measurements: Sequence[Measurement]) -> list[Summary]:
    """Return one summary per case and client, cases in the order of the tables, clients as measured."""
    pairs = dict.fromkeys((each.case, each.client) for each in measurements)
    return [
        _summary([each for each in measurements if (each.case, each.client) == pair], measurements)
        for case in CASES
        for pair in pairs
        if pair[0] == case
    ]


def _summary(own: Sequence[Measurement], everything: Sequence[Measurement]) -> Summary:
    case, client = own[0].case, own[0].client
    base = {
        each.round: each.figures
        for each in everything
        if each.case == case and each.client == BASELINES.get(case)
    }
    figures, ratios = {}, {}
    for name in own[0].figures:
        values = {each.round: value for each in own if (value := each.figures[name]) is not None}
        if values:
            figures[name] = _spread(values.values())
        # ratios are taken within a round: on a busy machine rounds differ more than clients
        shares = [value / of for at, value in values.items() if (of := base.get(at, {}).get(name))]
        if shares:
            ratios[name] = _spread(shares)
    return Summary(case, client, figures, ratios)


def _spread(values: Collection[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values))
