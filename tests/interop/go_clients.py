"""Build the Go program in `peers/` with Go's Kafka clients."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Final

import pytest

from asyncgroup.java import user_cache

__all__ = ["BUILD_LIMIT", "build_go_clients"]

SOURCES: Final = Path(__file__).with_name("peers")
BUILD_LIMIT: Final = 300.0
"""Seconds for the first build, which downloads the modules; later runs use the cached program."""
_ONE_BUILD: Final = threading.Lock()
"""Tests that run concurrently start their peers on threads."""


def build_go_clients() -> Path:
    """Return the program; build it if it is not in the cache. Skip the test without Go or its modules."""
    files = sorted(path for path in SOURCES.iterdir() if path.name.startswith("go.") or path.suffix == ".go")
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]
    target = user_cache() / "interop" / f"peers-{digest}"
    with _ONE_BUILD:
        if not target.exists():
            _build(target)
    return target


def _build(target: Path) -> None:
    go = shutil.which("go")
    if go is None:
        pytest.skip("Go is not installed")
    target.parent.mkdir(parents=True, exist_ok=True)
    made = target.with_name(f"{target.name}.{os.getpid()}")
    command = [go, "-C", str(SOURCES), "build", "-o", str(made), "."]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_LIMIT, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"building the Go clients took longer than {BUILD_LIMIT:g} s")
    if done.returncode:
        pytest.skip(f"the Go clients cannot be built: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
    made.replace(target)
