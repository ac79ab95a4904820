"""`format("asyncgroup")`: what Spark loads, for reading and for writing.

pyspark is imported here, as classes derive from its own: so this module is imported only where Spark asks for it.
"""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from asyncgroup.errors import ConfigError
from asyncgroup.spark.schema import frame_schema
from asyncgroup.spark.source.batch_reader import AsyncGroupReader
from asyncgroup.spark.source.errors import OptionError
from asyncgroup.spark.source.options import read_include_headers, read_settings
from asyncgroup.spark.source.stream_reader import AsyncGroupStreamReader
from asyncgroup.spark.tracebacks import without_traceback

__all__ = ["AsyncGroupDataSource"]


class AsyncGroupDataSource(DataSource):
    """Topics as a source and a sink, with the options of Spark's own Kafka source and some of ours.

    `asyncgroup.spark.source.options` has the options, `asyncgroup.spark.source` what is read and how.
    """

    @classmethod
    def name(cls) -> str:
        """`asyncgroup`."""
        return "asyncgroup"

    @without_traceback
    def schema(self) -> StructType:
        """The columns of Spark's Kafka source. Raises OptionError for options that no kind of query may have.

        Spark asks for them when the source is loaded, long before it asks for a reader.
        """
        self._check_options()
        return frame_schema(include_headers=read_include_headers(self.options))

    @without_traceback
    def reader(self, schema: StructType) -> DataSourceReader:
        """`spark.read`. Raises OptionError, also for a schema of the user's."""
        self._check_schema(schema)
        return AsyncGroupReader(read_settings(self.options, stream=False))

    @without_traceback
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """`spark.readStream`. Raises OptionError, also for a schema of the user's."""
        self._check_schema(schema)
        return AsyncGroupStreamReader(read_settings(self.options, stream=True))

    @without_traceback
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """`df.write`. Raises ConfigError for an option, a column or a save mode that is not allowed."""
        from asyncgroup.spark.sink.writer import make_writer  # who reads need not know how to write

        return make_writer(self.options, schema, stream=False, overwrite=overwrite)

    @without_traceback
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """`df.writeStream`. Raises ConfigError for an option or a column that is not allowed."""
        from asyncgroup.spark.sink.writer import make_writer  # who reads need not know how to write

        return make_writer(self.options, schema, stream=True, overwrite=overwrite)

    def _check_options(self) -> None:
        refused: dict[bool, ConfigError] = {}
        for stream in (True, False):
            try:
                read_settings(self.options, stream=stream)
            except ConfigError as error:
                refused[stream] = error
            else:
                return
        # nobody knows yet what the query will be; but only a batch has an end
        raise refused[not any(name.lower().startswith("ending") for name in self.options)]

    def _check_schema(self, schema: StructType) -> None:
        if schema != self.schema():
            raise OptionError("schema", schema.simpleString(), "none: the source's columns are fixed")
