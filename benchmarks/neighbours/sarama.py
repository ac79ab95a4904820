"""sarama: a small program in Go (`benchmarks/peers/sarama`), built when Go is at hand."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
from pathlib import Path
from typing import Final

from benchmarks.running import ROOT, worker

__all__ = ["SaramaUnavailable", "build", "version"]

SOURCES: Final = ROOT / "benchmarks" / "peers" / "sarama"
BUILD_LIMIT: Final = 300.0
"""Seconds for the first build, which downloads sarama; later ones take the program from the cache."""


class SaramaUnavailable(Exception):
    """Why sarama cannot be measured here."""


def version() -> str:
    """The version of sarama that the program is pinned to."""
    found = re.search(r"IBM/sarama v(\S+)", (SOURCES / "go.mod").read_text(encoding="utf-8"))
    assert found is not None
    return found[1]


def _target() -> Path:
    """Where the program goes: the user's cache, under a name that changes with its sources."""
    sources = b"".join((SOURCES / name).read_bytes() for name in ("go.mod", "go.sum", "main.go"))
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "asyncgroup" / "benchmarks" / f"sarama-{hashlib.sha256(sources).hexdigest()[:16]}"


async def build() -> Path:
    """The program, built if it is not in the cache; raises SaramaUnavailable, saying why."""
    target = _target()
    if target.exists():
        return target
    go = shutil.which("go")
    if go is None:
        raise SaramaUnavailable("Go is not installed")
    target.parent.mkdir(parents=True, exist_ok=True)
    made = target.with_name(f"{target.name}.{os.getpid()}")
    try:
        async with worker(go, "-C", str(SOURCES), "build", "-o", str(made), ".") as process:
            async with asyncio.timeout(BUILD_LIMIT):
                _, err = await process.communicate()
    except TimeoutError:
        raise SaramaUnavailable(f"the build took longer than {BUILD_LIMIT:g} s") from None
    if process.returncode:
        raise SaramaUnavailable(f"the build failed: {(err.decode().strip().splitlines() or ['?'])[-1]}")
    made.replace(target)
    return target
