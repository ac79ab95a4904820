"""The machine and the software versions of a measurement, for reports."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

__all__ = ["NOT_INSTALLED", "Conditions", "machine", "versions"]

NOT_INSTALLED: Final = "not installed"


@dataclass(frozen=True)
class Conditions:
    """What a report says about all its figures: the machine, the versions of the software, what is missing and why."""

    machine: Mapping[str, str]
    versions: Mapping[str, str]
    missing: Mapping[str, str] = field(default_factory=dict)


def machine() -> dict[str, str]:
    """Return processor, number of available cores, load average, operating system and Python version."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "processor": _processor(),
        "cores": str(cores),
        "load": " ".join(f"{load:.1f}" for load in os.getloadavg()),
        "system": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


def versions(distributions: Iterable[str]) -> dict[str, str]:
    """Return the installed version of each distribution; confluent-kafka adds that of librdkafka."""
    found = {}
    for name in dict.fromkeys(distributions):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = NOT_INSTALLED
        if name == "confluent-kafka" and found[name] != NOT_INSTALLED:
            from confluent_kafka import libversion

            found["librdkafka"] = str(libversion()[0])
    return found
