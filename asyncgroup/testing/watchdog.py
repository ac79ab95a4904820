"""Ends processes and removes their directory when the process that started them is gone, however it went.

A second process runs this file and reads a pipe whose other end only the owner holds: when the owner ends, be
it by `kill -9`, the pipe ends. `atexit` would miss that, and a parent-death signal is tied to the thread that
started the process.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

__all__ = ["Watchdog"]


class Watchdog:
    """Guards `directory` and the processes named to it until `close()`.

    If the owner ends without `close()`, the processes get SIGKILL and the directory is removed.
    """

    def __init__(self, directory: Path) -> None:
        self._process = subprocess.Popen(
            # -I and -S: the file stands alone, and should start fast whatever the environment is.
            [sys.executable, "-I", "-S", __file__, str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            # Ctrl-C in a terminal reaches the owner's group only, and the owner decides.
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """The process id of the watchdog itself."""
        return self._process.pid

    def guard(self, pid: int) -> None:
        """From now on this process ends with the owner."""
        self._send(f"+{pid}")

    def release(self, pid: int) -> None:
        """This process has ended; its id may belong to another one from now on."""
        self._send(f"-{pid}")

    def close(self) -> None:
        """Ends the watchdog; what it still guards is killed and the directory removed."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        # It may have been ended by somebody: then only the owner's own cleaning up is left.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{line}\n".encode())


def _watch(commands: IO[str], directory: str) -> None:
    """The other process: follows the owner's commands to their end, then cleans up."""
    pids: set[int] = set()
    for line in commands:
        pid = int(line[1:])
        pids.add(pid) if line[0] == "+" else pids.discard(pid)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    # A process that is just dying may still write: the second or third try succeeds.
    for _ in range(20):
        shutil.rmtree(directory, ignore_errors=True)
        if not Path(directory).exists():
            break
        time.sleep(0.1)


if __name__ == "__main__":
    _watch(sys.stdin, sys.argv[1])
