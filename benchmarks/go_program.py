"""Build Go programs of other clients (`benchmarks/peers/…`), if Go is installed."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
from pathlib import Path
from typing import Final

from benchmarks.common import ROOT, started_process

__all__ = ["GoProgram", "GoProgramUnavailable"]

BUILD_LIMIT: Final = 300.0
"""Seconds for the first build, which downloads dependencies; later runs take the program from the cache."""


class GoProgramUnavailable(Exception):
    """The program cannot be built; the message says why."""


class GoProgram:
    """The program in `benchmarks/peers/NAME`; its go.mod pins the version of `module`."""

    def __init__(self, name: str, module: str) -> None:
        self.name = name
        self._module = module
        self.sources = ROOT / "benchmarks" / "peers" / name

    def version(self) -> str:
        """Return the pinned version of the module."""
        text = (self.sources / "go.mod").read_text(encoding="utf-8")
        found = re.search(rf"{re.escape(self._module)} v(\S+)", text)
        assert found is not None
        return found[1]

    def _target(self) -> Path:
        """Return the path of the program in the user's cache; the name contains a hash of its sources."""
        sources = b"".join((self.sources / name).read_bytes() for name in ("go.mod", "go.sum", "main.go"))
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return cache / "asyncgroup" / "benchmarks" / f"{self.name}-{hashlib.sha256(sources).hexdigest()[:16]}"

    async def build(self) -> Path:
        """Return the path of the program, building it if it is not in the cache. Raises GoProgramUnavailable."""
        target = self._target()
        if target.exists():
            return target
        go = shutil.which("go")
        if go is None:
            raise GoProgramUnavailable("Go is not installed")
        target.parent.mkdir(parents=True, exist_ok=True)
        made = target.with_name(f"{target.name}.{os.getpid()}")
        try:
            async with started_process(go, "-C", str(self.sources), "build", "-o", str(made), ".") as process:
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
