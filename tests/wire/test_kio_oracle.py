"""Encoding and decoding compared with kio, for every message and version that kio supports."""

from __future__ import annotations

import pytest
from hypothesis import given

from asyncgroup.wire import messages as m
from asyncgroup.wire.codec import decode, encode
from asyncgroup.wire.message import Message
from asyncgroup.wire.schema import message_spec
from asyncgroup.wire.tables import TABLES
from tests.profiles import long_family, thinned
from tests.wire.kio_oracle import KNOWN_TO_BOTH, Oracle, kio_versions
from tests.wire.strategies import ALL_VERSIONS, few_examples

UNKNOWN_TO_KIO = {
    "OffsetCommitKey",
    "OffsetCommitValue",
    "LegacyOffsetCommitKey",
    "LegacyOffsetCommitValue",
    "GroupMetadataKey",
    "GroupMetadataValue",
    *(name for name in TABLES if name.startswith("ConsumerGroup") and name.endswith(("Key", "Value"))),
}
"""Records of __consumer_offsets; `test_golden_bytes.py` compares them with bytes from Kafka itself."""


def test_kio_lacks_only_the_coordinator_records():
    assert {name for name, _ in set(ALL_VERSIONS) - set(KNOWN_TO_BOTH)} == UNKNOWN_TO_KIO


def test_kio_has_no_additional_versions():
    theirs = {(name, version) for name in TABLES for version in kio_versions(name)}
    assert len(theirs) > 400
    assert theirs - set(ALL_VERSIONS) == set()


@pytest.mark.parametrize(("name", "version"), long_family(KNOWN_TO_BOTH, quick=12))
def test_bytes_match_kios(name, version):
    oracle = Oracle(name, version)
    assert oracle.cls.__flexible__ == (version in message_spec(name).flexible)

    @few_examples(12)
    @given(oracle.messages())
    def check(message: Message) -> None:
        theirs = oracle.convert(message)
        data = encode(message, version)
        assert data == oracle.encode(theirs)
        assert oracle.decode(data) == theirs
        assert decode(oracle.ours, version, data) == message

    check()


@pytest.mark.parametrize("name", dict(KNOWN_TO_BOTH))
def test_bytes_of_defaults_match_kios(name):
    """Messages with only default values, which need no conversion of values, in every version."""
    message = getattr(m, name)()
    for version in thinned([version for each, version in KNOWN_TO_BOTH if each == name], every=3):
        oracle = Oracle(name, version)
        data = encode(message, version)
        assert oracle.encode(oracle.decode(data)) == data, version
        assert decode(oracle.ours, version, data) == message, version
