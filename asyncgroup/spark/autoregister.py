"""Let Spark discover `format("asyncgroup")`: the wheel installs this file as the package `pyspark_asyncgroup`.

Spark imports every top-level module whose name begins with `pyspark_` and uses its `DefaultSource`, if it has one
(`pyspark.sql.worker.lookup_data_sources`). If any of these modules raises, Spark uses none of them. Therefore nothing is
imported at module level, and if the source cannot be imported (pyspark too old, no pyarrow), `DefaultSource` is missing.
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
        logging.getLogger("asyncgroup.spark").debug("data source 'asyncgroup' is not available: %s", error)
        raise AttributeError(f"data source 'asyncgroup' is not available: {error}") from error
    return AsyncGroupDataSource
