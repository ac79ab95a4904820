"""The benchmark `pulsar_broker` works on an embedded Pulsar. The tests check no rate."""

from __future__ import annotations

import pytest
from rich.progress import Progress

from benchmarks.machine import Conditions, machine
from benchmarks.pulsar_broker import run as benchmark


@pytest.mark.real
@pytest.mark.full
async def test_each_case_on_an_embedded_pulsar(capsys: pytest.CaptureFixture[str]) -> None:
    options = benchmark.parse(["--quick", "--only", "embedded"])
    found = await benchmark.run(options, Progress(disable=True))
    assert [(each.case, each.deliveries) for each in found] == [("one", 1_000), ("crowd", 400)]
    assert all(each.rate > 0 for each in found)
    benchmark.show(options, found, Conditions(machine(), {}, {}))
    assert "crowd" in capsys.readouterr().out
