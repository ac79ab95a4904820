"""The daemon that imports pandas and pyarrow before it forks Spark's Python workers."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("pyspark")

LOOK = """
import sys
import pyspark.daemon

def manager():
    print(sorted({"pandas", "pyarrow", "pyspark.worker"} & set(sys.modules)))

pyspark.daemon.manager = manager
from asyncgroup.spark import preloading_daemon
preloading_daemon.MODULES = (*preloading_daemon.MODULES, "asyncgroup_has_no_such_module")
preloading_daemon.main()
import os
from pathlib import Path
print(os.environ["OPENBLAS_NUM_THREADS"])
print(sorted({task.joinpath("comm").read_text().strip() for task in Path("/proc/self/task").iterdir()} - {"jemalloc_bg_thd"}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_modules_are_imported_without_starting_threads() -> None:
    # jemalloc's background thread is allowed: jemalloc has fork handlers for it
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    looked = subprocess.run(
        [sys.executable, "-c", LOOK],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    imported, openblas, threads = looked.stdout.splitlines()
    assert (imported, openblas) == ("['pandas', 'pyarrow', 'pyspark.worker']", "1"), looked.stderr
    assert len(threads.split(",")) == 1, threads
