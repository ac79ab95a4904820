"""Spark shows the message of an error with few other lines."""

from __future__ import annotations

import inspect
import io
import logging
import traceback
from collections.abc import Callable, Iterator

import pytest

from asyncgroup.errors import AsyncGroupError
from asyncgroup.spark.data_source import AsyncGroupDataSource
from asyncgroup.spark.option_words import SOURCE_WORDS
from asyncgroup.spark.source.errors import OptionError
from asyncgroup.spark.source.readers import AsyncGroupStreamReader
from asyncgroup.spark.worker_process import strip_batch_tracebacks, strip_traceback

CAUSE = "ValueError: its cause"


def deep(levels: int, error: Exception) -> None:
    if levels:
        deep(levels - 1, error)
    raise error from ValueError("its cause")


def shown(call: Callable[[], object]) -> list[str]:
    """Return the lines that pyspark sends to the JVM (`pyspark.util.handle_worker_exception`)."""
    with pytest.raises(Exception) as caught:
        call()
    return "".join(traceback.format_exception(caught.value)).splitlines()


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """The log as written by a plain handler; pyspark changes the format of pytest's handlers."""
    text, log = io.StringIO(), logging.getLogger("asyncgroup.spark")
    handler, level = logging.StreamHandler(text), log.level
    handler.setFormatter(logging.Formatter())
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    yield text
    log.setLevel(level)
    log.removeHandler(handler)


def test_errors_of_asyncgroup_have_no_traceback(logged: io.StringIO) -> None:
    lines = shown(lambda: strip_traceback(SOURCE_WORDS)(deep)(5, AsyncGroupError("what is wrong")))
    assert lines[-1] == "asyncgroup.errors.AsyncGroupError: what is wrong"
    assert CAUSE not in lines
    assert not any(line.endswith(", in deep") for line in lines)
    assert CAUSE in logged.getvalue()
    assert ", in deep" in logged.getvalue()


def test_other_errors_keep_their_traceback() -> None:
    lines = shown(lambda: strip_traceback(SOURCE_WORDS)(deep)(5, KeyError("a mistake of ours")))
    assert CAUSE in lines


def test_rows_are_passed_until_an_error() -> None:
    def rows() -> Iterator[int]:
        yield from (1, 2)
        deep(5, AsyncGroupError("no more"))

    batches = strip_batch_tracebacks(rows(), SOURCE_WORDS)
    assert [next(batches), next(batches)] == [1, 2]
    assert CAUSE not in shown(lambda: next(batches))


def test_an_option_is_named_within_a_few_lines() -> None:
    source = AsyncGroupDataSource(
        {"subscribe": "a", "kafka.bootstrap.servers": "x:1", "startingOffset": "earliest"}
    )
    lines = shown(source.schema)
    # preceded by frames of pytest and this file; in Spark by one of its frames
    ours = [line for line in lines if "asyncgroup/spark" in line]
    assert len(ours) == 1
    assert lines[-1].endswith(
        "there is no such option; did you mean startingOffsets or startingOffsetsByTimestamp?"
    )
    with pytest.raises(OptionError):
        source.schema()


def test_the_signature_is_kept() -> None:
    """Spark finds out by the number of parameters whether `latestOffset` takes a limit."""
    assert list(inspect.signature(AsyncGroupStreamReader.latestOffset).parameters) == [
        "self",
        "start",
        "limit",
    ]
