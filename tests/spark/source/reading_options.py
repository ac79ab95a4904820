"""Short functions for reading options, and Spark's text of offsets."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from typing import Any, Final

import pytest

from asyncgroup.model import TopicPartition
from asyncgroup.spark.source.errors import OptionError
from asyncgroup.spark.source.options.offsets_json import dump
from asyncgroup.spark.source.options.parser import read_settings
from asyncgroup.spark.source.options.settings import ReadSettings

__all__ = ["SERVERS", "dumps", "read", "refused"]

SERVERS: Final = {"kafka.bootstrap.servers": "one:9092,two:9092"}


def read(stream: bool = True, /, **options: Any) -> ReadSettings:
    """Return the settings of a query that subscribes to `a` by default; `_` stands for a dot in option names."""
    named = {name.replace("_", "."): value for name, value in options.items()}
    return read_settings(SERVERS | {"subscribe": "a"} | named, stream=stream)


def refused(stream: bool = True, /, **options: Any) -> str:
    """Return the text of the error."""
    with pytest.raises(OptionError) as caught:
        read(stream, **options)
    assert isinstance(caught.value, ValueError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    return str(caught.value)


def dumps(offsets: Mapping[TopicPartition, int]) -> str:
    """Return the JSON as Spark writes it, without spaces."""
    return json.dumps(dump(offsets), separators=(",", ":"))
