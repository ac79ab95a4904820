"""Gaps, duplicates and losses of the `rebalance` benchmark, computed from receipts; and the table."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from benchmarks.common import wrap
from benchmarks.rebalance.scenario import LEAVER, NANO, Outcome, Receipt

__all__ = ["CASES", "Case", "Measurement", "Summary", "summarize", "worst_gaps"]


class Case(NamedTuple):
    """A client with an assignor, or with the consumer protocol (`strategy`)."""

    name: str
    client: str
    strategy: str
    at_heartbeat: bool = False

    @property
    def title(self) -> str:
        """The name in the table."""
        return f"{self.client} {self.strategy}{', at heartbeat' * self.at_heartbeat}"


CASES: Final = {
    case.name: case
    for case in (
        Case("asyncgroup", "asyncgroup", "range"),
        Case("asyncgroup-at-heartbeat", "asyncgroup", "range", at_heartbeat=True),
        Case("asyncgroup-cooperative", "asyncgroup", "cooperative-sticky"),
        Case("asyncgroup-cooperative-at-heartbeat", "asyncgroup", "cooperative-sticky", at_heartbeat=True),
        Case("asyncgroup-consumer", "asyncgroup", "consumer"),
        Case("aiokafka", "aiokafka", "range"),
        Case("confluent", "confluent-kafka", "range"),
        Case("confluent-cooperative", "confluent-kafka", "cooperative-sticky"),
        Case("confluent-consumer", "confluent-kafka", "consumer"),
        Case("sarama", "sarama", "range"),
        Case("sarama-cooperative", "sarama", "cooperative-sticky"),
        Case("franz-go", "franz-go", "range"),
        Case("franz-go-cooperative", "franz-go", "cooperative-sticky"),
        Case("franz-go-consumer", "franz-go", "consumer"),
    )
}
GO_MODULES: Final = {"sarama": "github.com/IBM/sarama", "franz-go": "github.com/twmb/franz-go"}
"""The clients in Go, which are members by `benchmarks/peers/group`, and their modules."""

MODES: Final = ("in step", "spread")


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One run: the longest gap between records of each partition, in seconds, in each phase.

    `quiet`: no member joins or leaves; `keep` and `move`: a member joins, for partitions that stay with their member and
    for those that it gets; `stay` and `leave`: a member leaves, for partitions of the other members and for its own. `sent`, `lost` and `duplicates` count records.
    """

    case: str
    mode: str
    round: int
    quiet: list[float]
    keep: list[float]
    move: list[float]
    stay: list[float]
    leave: list[float]
    sent: int
    lost: int
    duplicates: int

    @classmethod
    def of(cls, case: str, mode: str, index: int, outcome: Outcome) -> Measurement:
        """Create a measurement from the outcome of a scenario."""
        first = first_receipts(outcome.receipts)
        sent = sum(outcome.sent.values())
        join, leave = worst_gaps(first, outcome.join), worst_gaps(first, outcome.leave)
        founders = {each.partition: each.member for each in first if each.at < outcome.join[0]}
        owners = {each.partition: each.member for each in first if each.at < outcome.leave[0]}
        moved = {partition for partition, member in owners.items() if member != founders.get(partition)}
        left = {partition for partition, member in owners.items() if member == LEAVER}
        return cls(
            case=case,
            mode=mode,
            round=index,
            quiet=list(worst_gaps(first, outcome.quiet).values()),
            keep=[gap for partition, gap in join.items() if partition not in moved],
            move=[gap for partition, gap in join.items() if partition in moved],
            stay=[gap for partition, gap in leave.items() if partition not in left],
            leave=[gap for partition, gap in leave.items() if partition in left],
            sent=sent,
            lost=sent - len(first),
            duplicates=len(outcome.receipts) - len(first),
        )


def first_receipts(receipts: Iterable[Receipt]) -> list[Receipt]:
    """Return the first receipt of each record, in order of time."""
    seen: set[tuple[int, int]] = set()
    first = []
    for receipt in sorted(receipts, key=lambda each: each.at):
        if receipt[:2] not in seen:
            seen.add(receipt[:2])
            first.append(receipt)
    return first


def worst_gaps(receipts: Sequence[Receipt], window: tuple[int, int]) -> dict[int, float]:
    """Return each partition's longest time without a record within a window, in seconds; `receipts` in order of time."""
    begin, end = window
    last: dict[int, int] = {}
    worst: dict[int, int] = {}
    for partition, _, at, _ in receipts:
        if at >= begin:
            since = max(last.get(partition, begin), begin)
            worst[partition] = max(worst.get(partition, 0), min(at, end) - since)
        last[partition] = at
    for partition, at in last.items():
        worst[partition] = max(worst.get(partition, 0), end - max(at, begin))
    return {partition: worst[partition] / NANO for partition in sorted(worst)}


class Summary(NamedTuple):
    """All rounds of one case: worst and median of the partitions' longest gaps, in seconds; counts are sums."""

    case: str
    mode: str
    quiet: float
    keep_median: float
    keep: float
    move_median: float
    move: float
    stay_median: float
    stay: float
    leave_median: float
    leave: float
    worst_by_round: list[float]
    sent: int
    duplicates: int
    lost: int


def summarize(measurements: Sequence[Measurement]) -> list[Summary]:
    """Return one summary per case and mode, in the order of the table."""
    return [
        _summary(case, mode, own)
        for mode in MODES
        for case in CASES
        if (own := [each for each in measurements if (each.case, each.mode) == (case, mode)])
    ]


def _summary(case: str, mode: str, own: Sequence[Measurement]) -> Summary:
    def worst(gaps: Iterable[Sequence[float]]) -> float:
        return max((max(each, default=0.0) for each in gaps), default=0.0)

    def median(gaps: Iterable[Sequence[float]]) -> float:
        return statistics.median([gap for each in gaps for gap in each] or [0.0])

    return Summary(
        case,
        mode,
        worst(each.quiet for each in own),
        median(each.keep for each in own),
        worst(each.keep for each in own),
        median(each.move for each in own),
        worst(each.move for each in own),
        median(each.stay for each in own),
        worst(each.stay for each in own),
        median(each.leave for each in own),
        worst(each.leave for each in own),
        [worst([each.keep, each.move, each.stay, each.leave]) for each in own],
        sum(each.sent for each in own),
        sum(each.duplicates for each in own),
        sum(each.lost for each in own),
    )


def rows(summaries: Sequence[Summary], mode: str) -> list[list[str]]:
    """Return the table rows of one mode."""
    return [
        [
            CASES[each.case].title,
            f"{each.quiet * 1000:,.0f}",
            _pair(each.keep_median, each.keep),
            _pair(each.move_median, each.move),
            _pair(each.stay_median, each.stay),
            _pair(each.leave_median, each.leave),
            f"{each.duplicates:,}",
            f"{each.lost:,}",
        ]
        for each in summaries
        if each.mode == mode
    ]


def _pair(median: float, worst: float) -> str:
    return f"{median * 1000:,.0f} / {worst * 1000:,.0f}"


def caption(options: Mapping[str, object]) -> str:
    """Return the explanation of the columns."""
    return wrap(
        f"{options['rate']} records/s over {options['partitions']} partitions, heartbeats every {options['heartbeat']:g} s "
        f"(by the consumer protocol every {options['consumer_heartbeat']:g} s), "
        f"{options['rounds']} rounds; three members, then another one joins, then one leaves, each in a separate process. "
        "The longest gap between two receipts of a partition in ms, median / worst over partitions and rounds: without a "
        "change of members, when one joins (partitions that stay with their member, and those that move), when one leaves "
        "(the other members' partitions, and its own: these wait for the "
        "others' next heartbeats, unless the leaving member works until then, as `aclose(at_heartbeat=True)` does). In each "
        "round the changes come at another phase of the heartbeat interval, the same for all clients. In step: heartbeats "
        "at their natural times. Spread: before each change all processes are stopped (SIGSTOP) for one interval and resumed "
        "one after another in equal parts of an interval, so that their overdue heartbeats, and the following ones, are "
        "spread over it, unless the client aligns them again. Twice: records received more than once."
    )
