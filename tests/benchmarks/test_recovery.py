"""The benchmark `recovery`: the figures of an outcome, and one short run."""

from __future__ import annotations

import pytest
from rich.progress import Progress

from asyncgroup.testing.apache_kafka import ApacheKafka
from benchmarks.recovery import run as recovery_run
from benchmarks.recovery.figures import Measurement, longest_gap, rows, summarize
from benchmarks.recovery.scenario import Outcome

SECOND = 1_000_000_000


def test_delays_count_from_the_acknowledgement_and_since_the_fault() -> None:
    outcome = Outcome(
        begin=10 * SECOND,
        end=20 * SECOND,
        acknowledged={(0, 0): 9 * SECOND, (0, 1): 11 * SECOND, (0, 2): 12 * SECOND, (1, 0): 13 * SECOND},
        receipts={
            "aiokafka": [
                (0, 0, 19 * SECOND),  # acknowledged before the fault: does not count
                (0, 1, 11 * SECOND + SECOND // 2),
                (0, 1, 14 * SECOND),
                (0, 2, 12 * SECOND - 1000),  # handled before the producer got the acknowledgement
            ]
        },
        commits={"aiokafka": [9 * SECOND, 12 * SECOND, 13 * SECOND]},
    )
    found = Measurement.of("leader-killed", "aiokafka", 1, outcome)
    assert (found.records, found.worst, found.late, found.twice, found.lost) == (3, 0.5, 1, 1, 1)
    assert found.commit_gap == 7.0
    assert found.pauses == {0: 5.0}  # from 14 to 19
    assert found.pause == 5.0


def test_what_a_killed_member_received_is_no_pause() -> None:
    """The survivor had the partition before the killed member joined: the pause begins at the fault."""
    outcome = Outcome(
        begin=10 * SECOND,
        end=20 * SECOND,
        receipts={
            "aiokafka": [(0, 0, 2 * SECOND), (0, 7, 15 * SECOND), (1, 0, 9 * SECOND), (1, 1, 19 * SECOND)]
        },
        commits={"aiokafka": []},
    )
    assert Measurement.of("member-killed", "aiokafka", 1, outcome).pauses == {0: 5.0, 1: 9.0}
    assert Measurement.of("leader-killed", "aiokafka", 1, outcome).pauses == {0: 13.0, 1: 10.0}


def test_a_gap_begins_at_the_last_commit_before_the_window_and_ends_with_it() -> None:
    assert longest_gap([], 0, 5 * SECOND) == 5.0
    assert longest_gap([SECOND, 4 * SECOND], 2 * SECOND, 5 * SECOND) == 3.0
    assert longest_gap([2 * SECOND, 3 * SECOND, 9 * SECOND], 2 * SECOND, 5 * SECOND) == 2.0


def test_the_table_has_medians_and_every_round() -> None:
    measured = [
        Measurement(
            fault="leader-moved",
            client="asyncgroup",
            round=index,
            records=10,
            worst=worst,
            late=1,
            pause=1.5,
            pauses={0: 1.5, 1: 0.1},
            commit_gap=0.5,
            twice=0,
            lost=0,
        )
        for index, worst in enumerate([0.1, 0.3, 0.2], 1)
    ]
    title, row = rows(summarize(measured), "leader-moved")
    assert title[0] == "leaders moved (election)"
    assert row == [
        "asyncgroup",
        "0.20",
        "0.10 0.30 0.20",
        "3",
        "1.50",
        "1.50 1.50 1.50",
        "0.50",
        "0.50 0.50 0.50",
        "0",
        "0",
    ]


@pytest.mark.soak
@pytest.mark.timeout(300)
async def test_every_client_meets_the_fault(apache_kafka_3: ApacheKafka) -> None:
    options = recovery_run.parse(["--quick", "--rate", "100"])
    found = await recovery_run.measure(apache_kafka_3, options, Progress(disable=True))
    assert [(each.fault, each.client) for each in found] == [
        ("leader-moved", "asyncgroup"),
        ("leader-moved", "aiokafka"),
        ("leader-moved", "confluent-kafka"),
    ]
    assert all(each.records > 0 and each.lost == 0 for each in found)
