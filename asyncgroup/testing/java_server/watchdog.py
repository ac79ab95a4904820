"""A watchdog process that kills child processes and removes their directory when their parent has ended.

The watchdog runs this file in a separate process and reads a pipe whose other end only the parent holds. When the
parent ends, even by `kill -9`, the pipe ends. `atexit` does not run on SIGKILL, and a parent-death signal is sent when
the thread that started the process ends.
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
    """Guards `directory` and the processes passed to `guard` until `close`.

    If the parent ends without `close`, the processes are killed by SIGKILL and the directory is removed.
    """

    def __init__(self, directory: Path) -> None:
        self._process = subprocess.Popen(
            # -I and -S: the file needs the standard library only, and starts fast in any environment
            [sys.executable, "-I", "-S", __file__, str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            # so that Ctrl-C in a terminal reaches the parent's process group only
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """The process id of the watchdog itself."""
        return self._process.pid

    def guard(self, pid: int) -> None:
        """Kill this process when the parent ends."""
        self._send(f"+{pid}")

    def release(self, pid: int) -> None:
        """Stop guarding a process that has ended: the system may give its id to another process."""
        self._send(f"-{pid}")

    def close(self) -> None:
        """End the watchdog; processes that it still guards are killed, and the directory is removed."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        # the watchdog may have been killed; the parent's own cleanup still works then
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{line}\n".encode())


def _watch(commands: IO[str], directory: str) -> None:
    """The watchdog's process: read commands (`+pid`, `-pid`) until the pipe ends, then clean up."""
    pids: set[int] = set()
    for line in commands:
        pid = int(line[1:])
        pids.add(pid) if line[0] == "+" else pids.discard(pid)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    # a process that is being killed may still write a file; a later attempt succeeds
    for _ in range(20):
        shutil.rmtree(directory, ignore_errors=True)
        if not Path(directory).exists():
            break
        time.sleep(0.1)


if __name__ == "__main__":
    _watch(sys.stdin, sys.argv[1])
