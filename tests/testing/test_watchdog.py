"""The watchdog process, which kills guarded processes when their parent has ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from asyncgroup.testing.java_server.starting import time_limit
from asyncgroup.testing.java_server.watchdog import Watchdog

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")

PARENT = """
import os, signal, subprocess, sys
from pathlib import Path
from asyncgroup.testing.java_server.watchdog import Watchdog
watchdog = Watchdog(Path(sys.argv[1]))
guarded = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL)
watchdog.guard(guarded.pid)
print(guarded.pid, watchdog.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    guarded = tmp_path / "guarded"
    (guarded / "deep").mkdir(parents=True)
    (guarded / "deep" / "file").touch()
    return guarded


def test_close_kills_only_guarded_processes(directory: Path) -> None:
    processes = [subprocess.Popen(["sleep", "60"]) for _ in range(2)]
    try:
        watchdog = Watchdog(directory)
        for process in processes:
            watchdog.guard(process.pid)
        watchdog.release(processes[0].pid)
        watchdog.close()
        assert processes[1].wait(60) == -signal.SIGKILL
        assert processes[0].poll() is None
        assert not directory.exists()
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_a_killed_watchdog_is_no_error(directory: Path) -> None:
    watchdog = Watchdog(directory)
    os.kill(watchdog.pid, signal.SIGKILL)
    os.waitid(os.P_PID, watchdog.pid, os.WEXITED | os.WNOWAIT)
    watchdog.guard(os.getpid())
    watchdog.close()
    assert directory.exists()


def test_a_killed_parent(directory: Path) -> None:
    parent = subprocess.run(
        [sys.executable, "-c", PARENT, str(directory)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert parent.returncode == -signal.SIGKILL, parent.stderr
    with time_limit(20) as expired:
        while directory.exists():
            assert not expired.wait(0.02), "the watchdog has not removed the directory"
