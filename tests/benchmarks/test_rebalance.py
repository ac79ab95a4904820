"""The benchmark `rebalance`: its options, failures of single runs, and members in Go."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from rich.progress import Progress

from asyncgroup.broker import EmbeddedCluster
from benchmarks.common import ClientFailed
from benchmarks.rebalance import run as rebalance_run
from benchmarks.rebalance.figures import CASES
from benchmarks.rebalance.scenario import Outcome

SILENT = Progress(disable=True)
IN_GO = ("sarama", "sarama-cooperative", "franz-go", "franz-go-cooperative", "franz-go-consumer")


def test_both_tables_have_all_clients_and_the_brokers_have_the_interval_of_the_consumer_protocol() -> None:
    options = rebalance_run.parse(["--modes", "in step"])
    assert (options.heartbeat, options.consumer_heartbeat, options.modes) == (1.0, 1.0, ["in step"])
    assert set(options.kafka_properties.values()) == {1000}
    assert len(options.kafka_properties) == 2, "the interval, and the shortest one allowed"
    defaults = rebalance_run.parse(["--default-heartbeats"])
    assert (defaults.heartbeat, defaults.consumer_heartbeat, defaults.kafka_properties) == (3.0, 5.0, {})
    assert options.cases == defaults.cases == list(CASES)
    assert {*IN_GO, "asyncgroup-consumer", "confluent-consumer"} < CASES.keys()


@pytest.mark.parametrize("option", ["--modes", "--only"])
def test_unknown_names_are_refused(option: str) -> None:
    with pytest.raises(SystemExit):
        rebalance_run.parse([option, "in step,pulsar"])


async def test_a_run_that_fails_is_reported_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    class FailingOnce:
        def __init__(self, client: str, *_: object) -> None:
            self.client = client

        async def run(self, _: Callable[[str], None]) -> Outcome:
            if self.client == "aiokafka":
                raise ClientFailed("a member of aiokafka failed:\nTraceback\nValueError: why\n")
            return Outcome()

    monkeypatch.setattr(rebalance_run, "Scenario", FailingOnce)
    options = rebalance_run.parse(["--quick", "--only", "asyncgroup,aiokafka,confluent"])
    options.modes = ["spread"]
    async with EmbeddedCluster() as cluster:
        found, missing = await rebalance_run.run(cluster.bootstrap_servers, options, SILENT)
    assert [each.case for each in found] == ["asyncgroup", "confluent"]
    assert missing == {"aiokafka range spread, round 1": "ValueError: why"}


@pytest.mark.soak
async def test_members_in_go() -> None:
    """Skipped only if the program cannot be built: without Go or its modules."""
    cases = ["sarama-cooperative", "franz-go-consumer"]
    options = rebalance_run.parse(
        ["--quick", "--partitions", "4", "--rate", "200", "--modes", "in step", "--only", ",".join(cases)]
    )
    options.settle, options.consumer_heartbeat = 1.0, 0.2
    async with EmbeddedCluster(
        group_consumer_heartbeat_interval=0.2, group_consumer_assignment_interval=0.1
    ) as cluster:
        found, missing = await rebalance_run.run(cluster.bootstrap_servers, options, SILENT)
    failed_runs = {which: why for which, why in missing.items() if ", round " in which}
    assert failed_runs == {}
    if missing:
        pytest.skip(str(missing))
    assert [each.case for each in found] == cases
    for each in found:
        assert (each.lost, each.duplicates) == (0, 0), each.case
        assert len(each.keep) + len(each.move) == len(each.stay) + len(each.leave) == 4
        assert (len(each.move), len(each.leave)) == (1, 1), each.case
