"""Arrow batches as Spark likes them: large enough to be worth a call, small enough for the processor's cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from asyncgroup.columns import Columns, arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["MAX_ROWS", "ArrowBatches", "arrow_schema"]

MAX_ROWS: Final = 10_000
"""Rows of an Arrow batch at most: Spark's own default (`spark.sql.execution.arrow.maxRecordsPerBatch`)."""

TARGET_ROWS: Final = 8_000
"""Rows at which an Arrow batch is cut: the next record batch might make it too large."""

FLUSH_ROWS: Final = 4_000
"""Rows that are handed on before a wait: the JVM then has work while the next answer comes. Queries took a tenth longer
where rows were always held back for a full batch; with fewer rows than these, each batch costs Spark too much.
"""

TARGET_BYTES: Final = 16 * 1024 * 1024
"""Bytes that are enough for an Arrow batch however few its rows: large records must not fill the memory."""


class ArrowBatches:
    """Gathers columns and cuts Arrow batches of about `TARGET_ROWS` rows or `TARGET_BYTES` bytes from them."""

    def __init__(self, *, include_headers: bool = False) -> None:
        self._include_headers = include_headers
        self.columns = Columns(include_headers=include_headers)

    def __repr__(self) -> str:
        return f"<ArrowBatches: {len(self.columns)} rows gathered>"

    @property
    def is_full(self) -> bool:
        """Whether a batch should be cut now."""
        return len(self.columns) >= TARGET_ROWS or self.columns.size >= TARGET_BYTES

    @property
    def is_worth_flushing(self) -> bool:
        """Whether what is there is enough to be handed on before a wait."""
        return len(self.columns) >= FLUSH_ROWS or self.columns.size >= TARGET_BYTES

    def flush(self) -> Iterator[pa.RecordBatch]:
        """What was gathered; in several pieces if it came as one batch too large."""
        columns, self.columns = self.columns, Columns(include_headers=self._include_headers)
        if not columns:
            return
        made = columns.to_arrow()
        pieces = -(-made.num_rows // MAX_ROWS)
        rows = -(-made.num_rows // pieces)
        for start in range(0, made.num_rows, rows):
            yield made.slice(start, rows)
