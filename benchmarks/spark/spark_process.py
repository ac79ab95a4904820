"""The measured process: `python -m benchmarks.spark.spark_process SETTINGS` (a JSON object with Spark's `config`).

All clients share one Spark, because its compiler needs a minute to reach full speed. For each line of its standard
input, a JSON object with a `function` (`module:name`) and its `settings`, the process calls the function with the
session and the settings, and prints a line with the `figures` or the `error`. It ends with its standard input.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import traceback
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["alive", "main"]


def main(settings_json: str) -> None:
    """Start Spark and run the requested functions."""
    settings: dict[str, Any] = json.loads(settings_json)
    with _answers() as answers:
        spark = _start(settings["config"])
        try:
            _answer(answers, {"figures": {"spark": spark.version}})
            for line in sys.stdin:
                _answer(answers, _run_task(spark, json.loads(line)))
        finally:
            spark.stop()


@contextlib.contextmanager
def _answers() -> Any:
    """Yield standard output for the answers; redirect all other output to standard error."""
    with os.fdopen(os.dup(1), "w") as output:
        os.dup2(2, 1)
        yield output


def _start(config: dict[str, str]) -> SparkSession:
    from asyncgroup.spark import local_session, register

    spark = local_session("asyncgroup benchmarks", config=config)
    register(spark)
    return spark


def alive(spark: SparkSession, _settings: dict[str, Any]) -> dict[str, float]:
    """Run a minimal job, to check that Spark's Java process still works."""
    return {"rows": spark.range(1).count()}


def _run_task(spark: SparkSession, task: dict[str, Any]) -> dict[str, Any]:
    try:
        module, _, name = task["function"].partition(":")
        return {"figures": getattr(importlib.import_module(module), name)(spark, task["settings"])}
    except Exception:
        return {"error": traceback.format_exc().partition("\nJVM stacktrace")[0]}


def _answer(answers: IO[str], answer: dict[str, Any]) -> None:
    print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
