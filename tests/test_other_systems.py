"""The package on systems that lack what POSIX has, simulated: Windows has no `fcntl`, and fewer signals and flags of files."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis.configuration import storage_directory

import asyncgroup

ROOT = Path(asyncgroup.__file__).parent

WITHOUT_POSIX = """
import asyncio, importlib, multiprocessing, os, pkgutil, signal, sys

os.process_cpu_count = os.cpu_count  # from Python 3.13 on; it needs sched_getaffinity where that is
for name in ("O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "fork", "register_at_fork", "getuid", "geteuid", "getpgid", "killpg",
             "setsid", "sysconf", "pread", "pwrite", "preadv", "pwritev", "sched_getaffinity", "fdatasync"):
    if hasattr(os, name):
        delattr(os, name)
for name in ("SIGKILL", "SIGSTOP", "SIGCONT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGPIPE", "pthread_sigmask"):
    if hasattr(signal, name):
        delattr(signal, name)
for name in ("fcntl", "grp", "pty", "pwd", "resource", "termios", "tty"):
    sys.modules[name] = None
"""

A_CLUSTER = """
from asyncgroup import Producer
from asyncgroup.broker import EmbeddedCluster
import asyncgroup.testing, asyncgroup.testing.pytest_plugin, asyncgroup.testing.apache_kafka, asyncgroup.testing.apache_pulsar, asyncgroup.workqueue

async def main():
    async with EmbeddedCluster(topics={"t": 1}) as cluster, Producer(cluster.bootstrap_servers) as producer:
        print((await producer.send("t", b"v")).offset)

asyncio.run(main())
"""

ALL_MODULES = """
import asyncgroup

failed = []
for module in pkgutil.walk_packages(asyncgroup.__path__, "asyncgroup.", onerror=lambda name: None):
    if not module.name.endswith("__main__"):  # would run a command
        try:
            importlib.import_module(module.name)
        except Exception as error:
            failed.append((module.name, error))
print(failed)
"""

DEPRECATED = re.compile(
    r"asyncio\.(iscoroutinefunction|[gs]et_event_loop_policy|get_child_watcher)\b|datetime\.utc(now|fromtimestamp)\b"
)
"""Functions that later versions of Python warn of: 3.12 of those of `datetime`, 3.14 of those of `asyncio`."""


@pytest.mark.parametrize(
    ("program", "printed"),
    [(A_CLUSTER, "0"), pytest.param(ALL_MODULES, "[]", marks=pytest.mark.full)],
    ids=["a cluster in memory", "all modules"],
)
def test_without_posix(program: str, printed: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_POSIX + program],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=ROOT.parent,
    )
    assert (done.stdout.strip(), done.stderr) == (printed, "")


def test_nothing_that_later_versions_of_python_warn_of() -> None:
    found = [
        (path, match[0]) for path in ROOT.rglob("*.py") for match in DEPRECATED.finditer(path.read_text())
    ]
    assert found == []


def test_examples_of_hypothesis_are_stored_outside_of_the_checkout() -> None:
    """It may be read-only."""
    assert ROOT.parent not in Path(storage_directory("examples").path).parents
