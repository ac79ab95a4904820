"""A peer's program in Go (`benchmarks/peers/…`), built when Go is at hand."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
from pathlib import Path
from typing import Final

from benchmarks.running import ROOT, worker

__all__ = ["GoProgram", "GoProgramUnavailable"]

BUILD_LIMIT: Final = 300.0
"""Seconds for the first build, which downloads the peer; later ones take the program from the cache."""


class GoProgramUnavailable(Exception):
    """Why a program cannot be built here."""


class GoProgram:
    """The program in `benchmarks/peers/NAME`, whose go.mod pins `module`."""

    def __init__(self, name: str, module: str) -> None:
        self.name, self._module = name, module
        self.sources = ROOT / "benchmarks" / "peers" / name

    def version(self) -> str:
        """The version of the peer that the program is pinned to."""
        text = (self.sources / "go.mod").read_text(encoding="utf-8")
        found = re.search(rf"{re.escape(self._module)} v(\S+)", text)
        assert found is not None
        return found[1]

    def _target(self) -> Path:
        """Where the program goes: the user's cache, under a name that changes with its sources."""
        sources = b"".join((self.sources / name).read_bytes() for name in ("go.mod", "go.sum", "main.go"))
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return cache / "asyncgroup" / "benchmarks" / f"{self.name}-{hashlib.sha256(sources).hexdigest()[:16]}"

    async def build(self) -> Path:
        """The program, built if it is not in the cache; raises GoProgramUnavailable, saying why."""
        target = self._target()
        if target.exists():
            return target
        go = shutil.which("go")
        if go is None:
            raise GoProgramUnavailable("Go is not installed")
        target.parent.mkdir(parents=True, exist_ok=True)
        made = target.with_name(f"{target.name}.{os.getpid()}")
        try:
            async with worker(go, "-C", str(self.sources), "build", "-o", str(made), ".") as process:
                async with asyncio.timeout(BUILD_LIMIT):
                    _, err = await process.communicate()
        except TimeoutError:
            raise GoProgramUnavailable(f"the build took longer than {BUILD_LIMIT:g} s") from None
        if process.returncode:
            raise GoProgramUnavailable(
                f"the build failed: {(err.decode().strip().splitlines() or ['?'])[-1]}"
            )
        made.replace(target)
        return target
