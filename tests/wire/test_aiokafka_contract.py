"""Contract test for the parts of aiokafka that `wire/compiled.py` imports, symbol by symbol.

aiokafka's internals change with every minor release. `python -m tests.wire.next_aiokafka` runs these tests with the newest
one; when they pass, the version pin may be widened.
"""

from __future__ import annotations

import ast
import importlib
import os
import re
import struct
from importlib.metadata import version
from pathlib import Path

import aiokafka
import pytest
from aiokafka.errors import KafkaError, UnsupportedCodecError
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.record.util import calc_crc32c

import asyncgroup.wire
from tests.wire.next_aiokafka import allowed_versions

SYMBOLS = {
    ("aiokafka.errors", "UnsupportedCodecError"),
    ("aiokafka.record.default_records", "DefaultRecordBatch"),
    ("aiokafka.record.default_records", "DefaultRecordBatchBuilder"),
    ("aiokafka.record.memory_records", "MemoryRecords"),
    ("aiokafka.record.util", "calc_crc32c"),
}
MEMBERS = {
    "builder": (r"\b_builder\.(\w+)", {"append", "build", "set_producer_state", "size"}),
    "class of batches": (r"\bDefaultRecordBatch\.(\w+)", {"validate_crc"}),
    "class of several batches": (r"\bMemoryRecords\([^)]*\)\.(\w+)", {"next_batch"}),
    "record": (r"\braw\.(\w+)", {"headers", "key", "offset", "timestamp", "value"}),
}
"""How the code names members of aiokafka's objects, and which it relies on."""
USERS = ("wire/batch_run.py", "wire/records.py", "consumer/decoding.py")
"""The modules that use these objects."""
TIME = 1_700_000_000_000
PURE_PYTHON = "AIOKAFKA_NO_EXTENSIONS" in os.environ
NEXT = os.environ.get("ASYNCGROUP_NEXT_AIOKAFKA")


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


@pytest.mark.parametrize("kind", MEMBERS)
def test_only_these_members_are_used(kind):
    pattern, members = MEMBERS[kind]
    package = Path(asyncgroup.wire.__file__).parents[1]
    texts = [(package / name).read_text(encoding="utf-8") for name in USERS]
    assert {found for text in texts for found in re.findall(pattern, text)} == members


def test_only_these_modules_use_them():
    package = Path(asyncgroup.wire.__file__).parents[1]
    pattern = re.compile(r"\b(?:raw_records|DefaultRecordBatch|DefaultRecordBatchBuilder|MemoryRecords)\(")
    found = {path for path in package.rglob("*.py") if pattern.search(path.read_text(encoding="utf-8"))}
    assert found == {package / name for name in USERS}


def test_the_release_is_the_expected_one():
    """It is a release that the pin allows, or the newest one if `python -m tests.wire.next_aiokafka` runs this."""
    assert aiokafka.__version__ == version("aiokafka")
    if NEXT is None:
        assert aiokafka.__version__ in allowed_versions()
    else:
        assert aiokafka.__version__ == NEXT


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
    assert isinstance(made.build(), bytearray)  # the producer's fields are written into it


def test_producers_fields_can_be_set_until_it_is_built():
    made = builder()
    assert made.append(0, TIME, None, b"value", []) is not None
    made.set_producer_state(70, 80, 90)
    assert struct.unpack_from(">qhi", made.build(), 43) == (70, 80, 90)


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


def test_the_checksum_is_crc_32c():
    """Of the digits, as in the catalogues of such functions."""
    for data in (b"123456789", bytearray(b"123456789"), memoryview(b"123456789")):
        assert calc_crc32c(data) == 0xE3069283


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
