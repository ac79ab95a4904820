"""The checksum, with and without the optional package; what its import loads."""

from __future__ import annotations

import subprocess
import sys

import pytest

from asyncgroup.pulsar.wire.checksum import crc32c

KNOWN = (b"123456789", 0xE3069283)
"""The check value of CRC-32C."""


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_the_known_value(kind: type) -> None:
    data, expected = KNOWN
    assert crc32c(kind(data)) == expected
    assert crc32c(kind(b"")) == 0


PROGRAM = """
import sys
sys.modules["crc32c"] = None
from asyncgroup.pulsar.wire import entry, frames, topic_name
assert "aiokafka" not in sys.modules
for kind in (bytes, bytearray, memoryview):
    assert frames.crc32c(kind(b"123456789")) == 0xE3069283
assert topic_name.topics_hash([]) == "00000000"
assert "aiokafka" in sys.modules
"""


@pytest.mark.full
def test_without_the_package_its_tables_are_imported_when_they_are_needed() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=100)
