"""Jars that are downloaded once per user into a directory of the cache, which is complete or does not exist."""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from asyncgroup.errors import AsyncGroupError
from asyncgroup.java import require_java
from asyncgroup.testing.java_server.ivy import ivy_command, ivy_jar

__all__ = ["JarDownload", "download_lock"]

_LOCK_INTERVAL: Final = 0.1
"""Seconds between two attempts to lock a file that another process has locked."""

_FETCHED_MARK: Final = "[SUCCESSFUL ]"  # part of the line that Ivy prints for each file


@dataclass(frozen=True, kw_only=True, slots=True)
class JarDownload:
    """Jars that Apache Ivy downloads: `ivy_file` lists them, and `missing` names those that a directory lacks.

    `ivy_settings` apply if the user names no file of settings. `name` and `size` are shown to users. `error` is raised with the reason if the jars cannot be downloaded, and
    `alternative` is what a user without pyspark can do instead.
    """

    name: str
    size: str
    ivy_file: str
    missing: Callable[[Path], Sequence[str]]
    error: type[AsyncGroupError]
    alternative: str = ""
    ivy_settings: str = ""

    def into(self, target: Path, limit: float) -> Path:
        """Return `target` with the jars, which are downloaded if it does not exist or lacks one.

        If several processes call it at the same time, one downloads and the others wait. `limit` in seconds applies to
        the wait and to the download each. Raises `error`, and `JavaNotFound` if there is no Java to run Ivy.
        """
        # the directory is created atomically, but other programs may clean the cache
        if not self.missing(target):
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = target.with_name(f"{target.name}.lock")
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(download_lock(lock, limit))
            except TimeoutError as error:
                raise self.error(str(error)) from None
            if self.missing(target):
                self._fetch(target, limit)
        return target

    def _fetch(self, target: Path, limit: float) -> None:
        java, ivy = require_java(f"fetch {self.name}"), ivy_jar()
        if ivy is None:
            raise self.error(
                f"{self.name} is downloaded by the Apache Ivy in pyspark, which is not installed: "
                f"`pip install pyspark`{self.alternative}"
            )
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as name:
            scratch = Path(name)
            (scratch / "lib").mkdir()
            log = scratch / "ivy.log"
            command = ivy_command(java, ivy, scratch, self.ivy_file, os.environ, self.ivy_settings)
            self._run(command, log, limit)
            if missing := self.missing(scratch / "lib"):
                raise self.error(
                    f"downloading {self.name}: Ivy did not fetch {_shortened(missing)}: {_error_lines(log)}"
                )
            shutil.rmtree(target, ignore_errors=True)
            (scratch / "lib").rename(target)

    def _run(self, command: list[str], log: Path, limit: float) -> None:
        _show(f"downloading {self.name} ({self.size}, once) …\n")
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        killer = threading.Timer(limit, process.kill)
        killer.start()
        try:
            assert process.stdout is not None
            _follow(process.stdout, log)
            code = process.wait()
        finally:
            overdue = not killer.is_alive()
            killer.cancel()
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        if code != 0:
            reason = f"took longer than {limit:g} s" if overdue else f"failed with exit code {code}"
            raise self.error(f"downloading {self.name} with Ivy {reason}: {_error_lines(log)}")


@contextmanager
def download_lock(path: Path, limit: float) -> Iterator[None]:
    """Hold the lock file; wait up to `limit` seconds for another process that holds it.

    The system releases it when a process dies, so a lock cannot become stale. Raises TimeoutError.
    """
    import fcntl  # not available on Windows

    with path.open("w") as file:
        for _ in range(max(1, math.ceil(limit / _LOCK_INTERVAL))):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(_LOCK_INTERVAL)
        else:
            raise TimeoutError(f"another process has held the lock {path} for {limit:g} s")
        yield


def _follow(lines: IO[str], log: Path) -> None:
    """Copy Ivy's output to the log until it ends; on a terminal show the number of files fetched in one line."""
    fetched = 0
    has_terminal = sys.stderr is not None and sys.stderr.isatty()
    with log.open("w") as copy:
        for line in lines:
            copy.write(line)
            if _FETCHED_MARK in line:
                fetched += 1
                if has_terminal:
                    _show(f"\r{fetched} files fetched")
    if has_terminal and fetched:
        _show("\n")


def _show(text: str) -> None:
    """Write to standard error, if there is one; a failure to show progress does not stop the download."""
    with contextlib.suppress(OSError):
        if sys.stderr is not None:
            sys.stderr.write(text)
            sys.stderr.flush()


def _shortened(names: Sequence[str], shown: int = 3) -> str:
    further = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + further


def _error_lines(log: Path, lines: int = 3) -> str:
    """Return the first lines of Ivy's log that mention an error, or its last lines if none does."""
    printed = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in printed if re.search(r"\berror at\b|exception|failed", line, re.IGNORECASE)]
    return "\n".join(errors[:lines] or printed[-lines:])
