"""Register `format("asyncgroup")` with a Spark session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from asyncgroup.spark.requirements import check_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]

_ALREADY_EXISTS: Final = "DATA_SOURCE_ALREADY_EXISTS"
"""Spark's error condition for registering a source that it has already discovered by itself."""


def register(spark: SparkSession) -> None:
    """Register `format("asyncgroup")` with a session, classic or Spark Connect; safe to call twice.

    If asyncgroup was installed by pip, Spark discovers the source by itself through the module `pyspark_asyncgroup`, and
    this does nothing: otherwise Spark would log at each query start that one source replaces the other. With Connect,
    which offers no way to check, it registers the source in any case, and Spark logs that line. Executors (and a Connect
    server) need asyncgroup installed, too.

    A query that writes to `asyncgroup` must be started on a thread that has an active session: Spark looks sinks up in
    that session, and raises DATA_SOURCE_NOT_FOUND on a thread without one. On a thread of your own (`asyncio.to_thread`)
    creating any DataFrame, such as `spark.createDataFrame(…)`, makes the session active.

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
    """Return whether the session knows the source (`DataSourceManager.dataSourceExists`); False if it cannot be asked."""
    try:
        manager = spark._jsparkSession.sessionState().dataSourceManager()
        return bool(manager.dataSourceExists("asyncgroup"))
    except Exception:  # noqa: BLE001  Connect has no JVM in this process; a later Spark may drop the method
        return False
