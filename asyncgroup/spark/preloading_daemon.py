"""Daemon for Spark's Python workers that imports pandas and pyarrow once, before it forks the workers.

Spark's own daemon (`pyspark/daemon.py`) leaves all imports to the workers, and each imports them again: about a second
of CPU for a worker that needs pandas. Choose this one with
`spark.python.daemon.module=asyncgroup.spark.preloading_daemon` (Spark's `PythonUtils.scala` and `PythonWorkerFactory`).

Spark imports late because a thread that an import starts does not exist in a fork. pyarrow starts its thread pools at
first use, OpenBLAS, which NumPy loads, is limited to one thread here, and the background thread of pyarrow's jemalloc is
handled by jemalloc's own fork handlers. Meant for local sessions
of short life, as the demo's, where starting workers is much of the work.
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
"""What most workers import. One that is missing is left to the worker that needs it, and to its error message."""


def main() -> None:
    """Import, then serve as Spark's own daemon does."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for name in MODULES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    from pyspark.daemon import manager

    gc.collect()
    gc.freeze()  # a worker's collector does not look at, and so does not copy, what it shares with its parent
    manager()


if __name__ == "__main__":
    main()
