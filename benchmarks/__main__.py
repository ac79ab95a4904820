"""`python -m benchmarks` lists the benchmarks, `python -m benchmarks NAME …` runs one."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Final

BENCHMARKS: Final = (
    "consume",
    "produce",
    "neighbours",
    "memory",
    "idle",
    "latency",
    "rebalance",
    "recovery",
    "broker",
    "queue",
    "pulsar",
    "pulsar_broker",
    "spark",
    "telemetry",
    "trips",
)
"""The benchmarks: modules of this package with a docstring and `main(arguments) -> exit code`."""


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark named by the first argument, or list all."""
    if arguments and arguments[0] in BENCHMARKS:
        module = importlib.import_module(f"benchmarks.{arguments[0]}")
        code: int = module.main(arguments[1:])
        return code
    if arguments and not arguments[0].startswith("-"):
        print(f"no benchmark {arguments[0]!r}\n")
    print("usage: python -m benchmarks NAME [--help]\n")
    for name in BENCHMARKS:
        summary = (importlib.import_module(f"benchmarks.{name}").__doc__ or "").partition("\n")[0]
        print(f"  {name:13} {summary}")
    return 2 if arguments and not arguments[0].startswith("-") else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
