"""Reading options with as little to write as can be, and offsets as Spark prints them."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from typing import Any, Final

import pytest

from asyncgroup.model import TopicPartition
from asyncgroup.spark.source.errors import OptionError
from asyncgroup.spark.source.offsets_json import dump
from asyncgroup.spark.source.options import read_settings
from asyncgroup.spark.source.settings import ReadSettings

__all__ = ["SERVERS", "dumps", "read", "refused"]

SERVERS: Final = {"kafka.bootstrap.servers": "one:9092,two:9092"}


def read(stream: bool = True, /, **options: Any) -> ReadSettings:
    """The settings of a query that subscribes to `a` unless it is told otherwise; `_` stands for a dot in a name."""
    named = {name.replace("_", "."): value for name, value in options.items()}
    return read_settings(SERVERS | {"subscribe": "a"} | named, stream=stream)


def refused(stream: bool = True, /, **options: Any) -> str:
    """The text of the error."""
    with pytest.raises(OptionError) as caught:
        read(stream, **options)
    assert isinstance(caught.value, ValueError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    return str(caught.value)


def dumps(offsets: Mapping[TopicPartition, int]) -> str:
    """The JSON that Spark prints, byte for byte: without spaces."""
    return json.dumps(dump(offsets), separators=(",", ":"))
