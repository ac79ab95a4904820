"""Lets Spark find `format("asyncgroup")` by itself: in the wheel this file is the package `pyspark_asyncgroup`.

Spark imports every top-level module whose name begins with `pyspark_` and takes its `DefaultSource`, if there is one
(`pyspark.sql.worker.lookup_data_sources`). If one of them raises, it takes none at all. So nothing is imported here,
and where the source cannot be had (a pyspark that is too old, no pyarrow) there simply is no `DefaultSource`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncgroup.spark.data_source import AsyncGroupDataSource as DefaultSource

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> Any:
    if name != "DefaultSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from asyncgroup.spark.data_source import AsyncGroupDataSource
    except Exception as error:
        logging.getLogger("asyncgroup.spark").debug("no data source 'asyncgroup': %s", error)
        raise AttributeError(f"the data source cannot be had: {error}") from error
    return AsyncGroupDataSource
