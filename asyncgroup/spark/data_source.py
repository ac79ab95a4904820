"""The data source `format("asyncgroup")`, the class that Spark loads for reading and writing.

Its classes derive from pyspark's, so this module imports pyspark; it is imported only when Spark needs the source.
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
from asyncgroup.spark.arrow import frame_schema
from asyncgroup.spark.option_words import SINK_WORDS, SOURCE_WORDS
from asyncgroup.spark.source.errors import OptionError
from asyncgroup.spark.source.options.parser import read_include_headers, read_settings
from asyncgroup.spark.source.readers import AsyncGroupReader, AsyncGroupStreamReader
from asyncgroup.spark.worker_process import strip_traceback

__all__ = ["AsyncGroupDataSource"]


class AsyncGroupDataSource(DataSource):
    """Reads and writes topics, with the options of Spark's Kafka source and a few more.

    The options are described in `asyncgroup.spark.source.options`, the reading in `asyncgroup.spark.source`.
    """

    @classmethod
    def name(cls) -> str:
        """Return `asyncgroup`."""
        return "asyncgroup"

    @strip_traceback(SOURCE_WORDS)
    def schema(self) -> StructType:
        """Return the columns of Spark's Kafka source. Raises OptionError for options that no kind of query allows.

        Spark calls this when the source is loaded, before it asks for a reader.
        """
        self._check_options()
        return frame_schema(include_headers=read_include_headers(self.options))

    @strip_traceback(SOURCE_WORDS)
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of `spark.read`. Raises OptionError, also if the user has set a schema."""
        self._check_schema(schema)
        return AsyncGroupReader(read_settings(self.options, stream=False))

    @strip_traceback(SOURCE_WORDS)
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader of `spark.readStream`. Raises OptionError, also if the user has set a schema."""
        self._check_schema(schema)
        return AsyncGroupStreamReader(read_settings(self.options, stream=True))

    @strip_traceback(SINK_WORDS)
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of `df.write`. Raises ConfigError for an option, column or save mode that is not allowed."""
        from asyncgroup.spark.sink.writer import make_writer  # not needed for reading

        return make_writer(self.options, schema, stream=False, overwrite=overwrite)

    @strip_traceback(SINK_WORDS)
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Return the writer of `df.writeStream`. Raises ConfigError for an option or column that is not allowed."""
        from asyncgroup.spark.sink.writer import make_writer  # not needed for reading

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
        # the kind of query is not known yet, except that only batch queries have ending offsets
        raise refused[not any(name.lower().startswith("ending") for name in self.options)]

    def _check_schema(self, schema: StructType) -> None:
        if schema != self.schema():
            raise OptionError("schema", schema.simpleString(), "none: the source's columns are fixed")
