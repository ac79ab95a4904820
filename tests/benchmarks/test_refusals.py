"""What the benchmarks refuse: the exit code is 2, and the message names the argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from benchmarks import idle, latency, produce, queue, spark, telemetry


@pytest.mark.parametrize(
    ("main", "argument", "value"),
    [
        (idle.main, "--only", "pulsar"),
        (idle.main, "--members", "0"),
        (idle.main, "--members", "1,two"),
        (latency.main, "--only", "pulsar"),
        (latency.main, "--rates", "0"),
        (latency.main, "--size", "8"),
        (produce.main, "--only", "pulsar"),
        (produce.main, "--modes", "fast"),
        (produce.main, "--sizes", "7"),
        (produce.main, "--codecs", "brotli"),
        (queue.main, "--only", "pulsar"),
        (queue.main, "--cases", "nosuch"),
        (queue.main, "--records", "many"),
        (spark.main, "--only", "flink"),
        (spark.main, "--cases", "sleeping"),
        (spark.main, "--rows", "0"),
        (telemetry.main, "--only", "statsd"),
        (telemetry.main, "--modes", "rows"),
    ],
)
def test_it_refuses(
    main: Callable[[list[str]], Any], argument: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([argument, value])
    assert ended.value.code == 2
    assert argument in capsys.readouterr().err
