"""Contract test for the parts of aiokafka that `wire/compiled.py` imports, symbol by symbol.

aiokafka's internals change with every minor release. When these tests pass with a new one, the version pin may be widened.
"""

from __future__ import annotations

import ast
import importlib
import os
import struct
from importlib.metadata import version
from pathlib import Path

import pytest
from aiokafka.errors import KafkaError, UnsupportedCodecError
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords

import asyncgroup.wire

SYMBOLS = {
    ("aiokafka.errors", "UnsupportedCodecError"),
    ("aiokafka.record.default_records", "DefaultRecordBatch"),
    ("aiokafka.record.default_records", "DefaultRecordBatchBuilder"),
    ("aiokafka.record.memory_records", "MemoryRecords"),
    ("aiokafka.record.util", "calc_crc32c"),
}
TIME = 1_700_000_000_000
PURE_PYTHON = "AIOKAFKA_NO_EXTENSIONS" in os.environ


def builder(codec: int = 0, transactional: int = 0, size: int = 1000) -> DefaultRecordBatchBuilder:
    """Positional arguments: magic, codec, is transactional, producer id, producer epoch, base sequence, size limit."""
    return DefaultRecordBatchBuilder(2, codec, transactional, 7, 8, 9, size)


def batch(**how: int) -> bytes:
    made = builder(**how)
    assert made.append(0, TIME, b"key", b"value", [("h", b"x"), ("n", None)]) is not None
    assert made.append(1, -1, None, None, []) is not None
    return bytes(made.build())


def test_only_these_symbols_are_imported_and_only_by_one_module():
    found = {}
    for path in Path(asyncgroup.wire.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module.startswith("aiokafka"):
                found.setdefault(path.name, set()).update((node.module, alias.name) for alias in node.names)
            elif isinstance(node, ast.Import):
                assert not any(alias.name.startswith("aiokafka") for alias in node.names)
    assert found == {"compiled.py": SYMBOLS}
    assert all(hasattr(importlib.import_module(module), name) for module, name in SYMBOLS)


def test_the_installed_aiokafka_release_is_supported():
    assert (0, 13) <= tuple(map(int, version("aiokafka").split(".")[:2])) < (0, 15)


@pytest.mark.skipif(PURE_PYTHON, reason="AIOKAFKA_NO_EXTENSIONS selects the pure Python classes")
def test_the_classes_are_the_compiled_ones():
    """The pure Python classes are twenty times slower."""
    for cls in (DefaultRecordBatch, DefaultRecordBatchBuilder, MemoryRecords):
        assert cls.__module__.startswith("aiokafka.record._crecords")


def test_building():
    made = builder()
    empty = made.size()
    assert made.append(0, TIME, b"key", b"value", [("h", b"x"), ("n", None)]) is not None
    assert made.size() > empty == 61
    assert isinstance(made.build(), bytes | bytearray)


def test_append_returns_none_for_a_full_batch_except_for_its_first_record():
    made = builder(size=70)
    assert made.append(0, TIME, b"k" * 100, None, []) is not None
    assert made.append(1, TIME, None, None, []) is None


def test_the_header_of_a_built_batch():
    """Fields: base offset, length, leader epoch, magic, CRC, attributes, last offset delta, timestamps, producer, count."""
    data = batch(transactional=1)
    fields = struct.unpack_from(">qiibIhiqqqhii", data)
    assert fields[:4] == (0, len(data) - 12, -1, 2)
    assert fields[5:] == (0x10, 1, TIME, TIME, 7, 8, 9, 2)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_reading(kind, codec):
    reader = DefaultRecordBatch(kind(batch(codec=codec)))
    assert reader.validate_crc() is True
    first, second = reader
    assert (first.offset, first.timestamp, first.key, first.value) == (0, TIME, b"key", b"value")
    assert list(first.headers) == [("h", b"x"), ("n", None)]
    assert (second.offset, second.key, second.value, list(second.headers)) == (1, None, None, [])


def test_reading_several_batches():
    reader = MemoryRecords(batch() + batch(codec=4))
    assert [len(list(found)) for found in iter(reader.next_batch, None)] == [2, 2]
    assert reader.next_batch() is None


def test_no_timestamp_is_minus_one():
    *_, last = DefaultRecordBatch(batch())
    assert last.timestamp == -1


def test_validate_crc_returns_false():
    data = bytearray(batch())
    data[-1] ^= 1
    assert DefaultRecordBatch(bytes(data)).validate_crc() is False


def test_an_unknown_codec_raises_unsupported_codec_error():
    data = bytearray(batch())
    data[22] |= 5
    with pytest.raises(UnsupportedCodecError):
        list(DefaultRecordBatch(bytes(data)))
    assert issubclass(UnsupportedCodecError, KafkaError)
