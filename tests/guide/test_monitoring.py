"""The programs of the page "Health, errors, hooks" that serve metrics and probes, on an embedded broker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncgroup.lifecycle import cancel_and_wait
from asyncgroup.testing import KafkaServer
from tests.cli.programs import free_ports
from tests.cli.test_metrics_port import get, page_with
from tests.guide.pages import snippet
from tests.guide.test_execution import RECORDS, define, server

__all__ = ["server"]

pytest.importorskip("prometheus_client")


def test_metrics_and_probes_of_a_program(server: KafkaServer) -> None:
    port = free_ports(1)
    printed: list[object] = []

    async def scrape() -> tuple[str, list[int]]:
        code = snippet("monitoring", "serve_probes(8080").replace("serve_probes(8080", f"serve_probes({port}")
        names = define(code, server, print=lambda *values: printed.append(values))
        running = asyncio.create_task(names["main"]())
        line = f'asyncgroup_records_consumed_total{{group="printers",topic="greetings"}} {float(RECORDS)}'
        page = await page_with(port, line)
        statuses = [(await get(port, path))[0] for path in ("/live", "/ready")]
        await cancel_and_wait(running)
        return page, statuses

    page, statuses = asyncio.run(scrape())
    assert statuses == [200, 200]
    assert len(printed) == RECORDS
    assert 'asyncgroup_lag_max{group="printers"} 0.0\n' in page


def test_metrics_in_a_registry_of_the_program(server: KafkaServer) -> None:
    from prometheus_client import REGISTRY, generate_latest

    names: dict[str, Any] = define(snippet("monitoring", "REGISTRY.register"), server)
    collector = REGISTRY._names_to_collectors["asyncgroup_lag_max"]
    try:
        names["metrics"].on_heartbeat("printers", 0.1)
        assert b'asyncgroup_heartbeat_seconds_count{group="printers"} 1.0\n' in generate_latest(REGISTRY)
    finally:
        REGISTRY.unregister(collector)
