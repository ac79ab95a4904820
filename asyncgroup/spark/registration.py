"""Making `format("asyncgroup")` known to a Spark session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from asyncgroup.spark.requirements import check_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]

_ALREADY_EXISTS: Final = "DATA_SOURCE_ALREADY_EXISTS"
"""Spark's error condition for the name of a source that it has found by itself."""


def register(spark: SparkSession) -> None:
    """Make `format("asyncgroup")` known to a session, classic or Spark Connect; safe to call twice.

    Where asyncgroup is installed by pip Spark finds the source by itself, through the module `pyspark_asyncgroup`, and
    nothing is registered: Spark would log at each start of a query that this source replaces the other. On Connect, where
    that cannot be asked, it does. Executors (and a Connect server) need asyncgroup installed, too.
    A query that writes to `asyncgroup` has to be started on a thread whose active session knows it: Spark looks a sink
    up there, and says DATA_SOURCE_NOT_FOUND on a thread that has none. On a thread of your own (`asyncio.to_thread`)
    anything that makes a DataFrame by the session, `spark.createDataFrame(…)`, makes it the active one.

    Raises SparkUnavailable if pyspark or pyarrow is missing or too old.
    """
    check_session(spark)
    if _is_registered(spark):
        return
    from pyspark.errors import PySparkException

    from asyncgroup.spark.data_source import AsyncGroupDataSource

    try:
        spark.dataSource.register(AsyncGroupDataSource)
    except PySparkException as error:
        if error.getCondition() != _ALREADY_EXISTS:
            raise


def _is_registered(spark: SparkSession) -> bool:
    """Whether the session has the source already (`DataSourceManager.dataSourceExists`); False if it cannot say."""
    try:
        manager = spark._jsparkSession.sessionState().dataSourceManager()
        return bool(manager.dataSourceExists("asyncgroup"))
    except Exception:  # noqa: BLE001  a Connect session has no Java here; a later Spark may have no such method
        return False
