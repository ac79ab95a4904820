"""PySpark's loggers do not change how the logs of later tests are formatted."""

from __future__ import annotations

import logging

from tests.conftest import let_pyspark_propagate


def test_pyspark_log_that_does_not_propagate():
    """PySpark makes one for each error with a query context; pytest would add its own handlers to it."""
    from pyspark.logger import PySparkLogger

    theirs, other = PySparkLogger.getLogger("DataFrameQueryContextLogger"), logging.getLogger("tests.other")
    theirs.propagate = other.propagate = False
    let_pyspark_propagate()
    assert (theirs.propagate, other.propagate) == (True, False)
    other.propagate = True
