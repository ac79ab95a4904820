"""The broker benchmark works: every broker starts, every client is counted, every cost is measured.

The tests check no speed.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.progress import Progress

from benchmarks import broker
from benchmarks.broker import run as broker_run
from benchmarks.broker.clients import CLIENTS, Settings
from benchmarks.broker.costs import COST_CASES
from benchmarks.broker.figures import COSTS, Cost, Rate, summarize_costs, summarize_rates
from benchmarks.broker.load import load
from benchmarks.broker.servers import KFAKE, SERVERS, is_compatible, started_server
from benchmarks.common import ClientFailed, run_worker
from tests.profiles import current_profile

SILENT = Progress(disable=True)
ROOT = Path(__file__).parents[2]
LITTLE = ("--quick", "--records", "600", "--servers", "asyncgroup", "--only", "aiokafka,asyncgroup")


@pytest.mark.full
async def test_rates_and_costs() -> None:
    is_full = current_profile() == "full"
    clients = ("aiokafka", "asyncgroup") if is_full else ("asyncgroup",)
    cases = () if is_full else ("--cases", "read,write,large,idle")
    options = broker_run.parse([*LITTLE, "--interval", "0.2", "--only", ",".join(clients), *cases])
    options.records, options.members, options.groups, options.seconds = 601, 5, 2, 0.3
    rates, costs = await broker_run.run(options, None, SILENT)
    assert [(each.kind, each.client, each.server) for each in rates] == [
        (kind, client, "asyncgroup") for kind in ("read", "write") for client in clients
    ]
    assert all(each.rate > 0 and each.client_cpu > 0 and each.server_cpu >= 0 for each in rates)
    found = {each.what for each in costs}
    assert found == set(COSTS) if is_full else {"large", "large-total", "idle"} <= found < set(COSTS)
    assert all(each.value >= 0 for each in costs)


async def test_the_mock_cluster_of_librdkafka() -> None:
    """It is found in confluent-kafka's library, accepts the loaded records, and ends with its standard input."""
    async with started_server("librdkafka-mock", {"read": 2}) as server:
        await load(server.bootstrap_servers, "read", 2, records=301, size=50)
        settings = {"bootstrap_servers": server.bootstrap_servers, "topic": "read", "partitions": 2}
        settings |= {"records": 302, "size": 50, "limit": 20.0}
        figures = await run_worker(CLIENTS["confluent-kafka"][0], settings, limit=30.0)
        assert figures["records"] == 302
        assert await server.cpu() > 0
    assert not is_compatible("asyncgroup", server.name)


async def test_a_broker_that_does_not_start_says_why() -> None:
    with pytest.raises(ClientFailed, match="topic"):
        async with started_server("asyncgroup", {"no/topic": 1}):
            pass


def test_it_prints_all_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert broker.main([*LITTLE, "--cases", "inside", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["benchmark"] == "broker"
    inside = ["start", "start-first", "start-three", "handling"]
    assert [each["what"] for each in report["costs"]] == inside
    assert [each["what"] for each in report["cost_summaries"]] == sorted(inside, key=list(COSTS).index)
    assert report["rates"] == []
    assert report["settings"]["members"] == 50
    assert report["versions"]["asyncgroup"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--only", "pulsar"],
        ["--servers", "redpanda"],
        ["--cases", "sleeping"],
        ["--bootstrap-servers", "localhost:9092"],
        ["--records", "1_000_000", "--partitions", "1"],  # more than the mock cluster keeps
    ],
)
def test_it_refuses(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        broker.main(arguments)
    assert ended.value.code == 2
    assert arguments[1].partition("_")[0] in capsys.readouterr().err or arguments[0] in {
        "--bootstrap-servers",
        "--records",
    }


def test_everything_is_measured_by_default() -> None:
    options = broker_run.parse([])
    assert options.clients == list(CLIENTS)
    assert options.servers == list(SERVERS)
    assert options.cases == ["read", "write", *COST_CASES]
    assert broker_run.parse(["--cases", "idle, read"]).cases == ["read", "idle"]


def test_ratios_are_to_another_broker_within_a_round() -> None:
    def rate(server: str, index: int, value: float) -> Rate:
        return Rate(
            kind="read", client="aiokafka", server=server, round=index, rate=value, client_cpu=1, server_cpu=2
        )

    own, mock, kfake = summarize_rates(
        [
            *(rate("asyncgroup", index, value) for index, value in enumerate([20, 300, 40])),
            *(rate("librdkafka-mock", index, 5) for index in range(3)),
            *(rate("kfake", index, value) for index, value in enumerate([10, 100, 50])),
        ]
    )
    assert [own.server, mock.server, kfake.server] == list(SERVERS)
    assert (own.ratio, own.lowest, own.highest) == pytest.approx((2.0, 0.8, 3.0))
    assert own.rate == 40
    assert kfake.ratio == 1.0
    (alone,) = summarize_rates([rate("asyncgroup", 1, 10)])
    assert (alone.ratio, alone.lowest) == (None, None)


def test_costs_are_medians() -> None:
    found = [Cost(what="idle", server="kfake", round=n, value=value) for n, value in enumerate([3, 1, 2])]
    assert summarize_costs(found) == [("idle", "kfake", 2, 1, 3)]


def test_the_go_program_uses_the_same_settings_and_output() -> None:
    source = (KFAKE.sources / "main.go").read_text(encoding="utf-8")
    for name in ('`json:"topics"`', '"bootstrap_servers"', "cpu_seconds"):
        assert name in source
    assert KFAKE.version()
    assert Settings.__dataclass_fields__.keys() == {
        "bootstrap_servers", "topic", "partitions", "records", "size", "limit"
    }  # fmt: skip
