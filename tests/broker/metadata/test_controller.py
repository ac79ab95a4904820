"""The hash that assigns groups to coordinators."""

from __future__ import annotations

from asyncgroup.broker.metadata.coordinator_election import java_hash


def test_java_hash():
    # values of String.hashCode, made positive by Utils.abs
    assert java_hash("") == 0
    assert java_hash("a") == 97
    assert java_hash("polygenelubricants") == 0  # Integer.MIN_VALUE
    assert java_hash("orders") == 1008770331
    assert java_hash("\U0001f600") == 0xD83D * 31 + 0xDE00
