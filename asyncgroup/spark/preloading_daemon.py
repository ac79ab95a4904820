"""Daemon for Spark's Python workers that imports pandas and pyarrow once, before it forks the workers.

With Spark's own daemon (`pyspark/daemon.py`) each worker imports them: about a second of CPU for a worker that needs
pandas. Select this one with `spark.python.daemon.module=asyncgroup.spark.preloading_daemon` (Spark's `PythonUtils.scala`
and `PythonWorkerFactory`).

Spark imports late because threads started by an import do not exist in a forked process. Here that is no problem: pyarrow
starts its thread pools at first use, OpenBLAS, which NumPy loads, is limited to one thread, and jemalloc's fork handlers
take care of the background thread of pyarrow's jemalloc. Meant for short-lived local sessions, such as the demo's, in
which starting workers is a large part of the work.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
from typing import Final

__all__ = ["main"]

MODULES: Final = (
    "pyarrow",
    "pyarrow.compute",
    "pandas",
    "pyspark.worker",
    "pyspark.sql.pandas.serializers",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.streaming.stateful_processor_api_client",
)
"""Modules that most workers import. A missing one is skipped; a worker that needs it raises the error."""


def main() -> None:
    """Import the modules, then run Spark's own daemon."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for name in MODULES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    from pyspark.daemon import manager

    from asyncgroup.spark.quiet_daemon import silence_closed_sockets

    silence_closed_sockets()
    gc.collect()
    gc.freeze()  # the garbage collector of a worker then does not touch, and so not copy, memory shared with the parent
    manager()


if __name__ == "__main__":
    main()
