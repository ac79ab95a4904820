"""Parsing of message tables."""

from __future__ import annotations

import pytest

from asyncgroup.wire.compiling import min_struct_size
from asyncgroup.wire.schema import FieldSpec, VersionRange, message_spec, parse_head, parse_table, snake_case

TABLE = """
request 7 0-3 flexible 2+ unstable
TimeoutMs int32 0+ default -1 ignorable
Names []string 1+ null 2+ default null
Rack string 2-3 tag 5 2+
Parts []Part 0+
  Id int16 0+
  Deep Deeper 1
    Flag bool 1
  Last int8 0+
Old string 0+ flexible none
Again []Shared 0+
= Shared
Id int64 0+
"""


@pytest.mark.parametrize(
    ("text", "low", "high"), [("3", 3, 3), ("3+", 3, 32767), ("3-7", 3, 7), ("none", 1, 0)]
)
def test_ranges(text, low, high):
    versions = VersionRange.parse(text)
    assert versions == (low, high)
    assert str(versions) == text
    assert [version in versions for version in (2, 3, 7, 8)] == [low <= v <= high for v in (2, 3, 7, 8)]


def test_only_numbers_are_in_a_range():
    assert "3" not in VersionRange(0, 9)


@pytest.mark.parametrize(
    ("name", "attribute"),
    [
        ("ThrottleTimeMs", "throttle_time_ms"),
        ("ResultsByTopicV3AndBelow", "results_by_topic_v3_and_below"),
        ("groupInstanceId", "group_instance_id"),
        ("IsKRaftController", "is_k_raft_controller"),
        ("HTTPCode", "http_code"),
        ("Key", "key"),
    ],
)
def test_names(name, attribute):
    assert snake_case(name) == attribute


def test_parsing():
    spec = parse_table("FooRequest", TABLE)
    assert (spec.name, spec.kind, spec.api_key) == ("FooRequest", "request", 7)
    assert (str(spec.versions), str(spec.flexible)) == ("0-3", "2+")
    head = parse_head(TABLE)
    assert (head.kind, head.api_key, head.versions, head.flexible) == (
        spec.kind,
        spec.api_key,
        spec.versions,
        spec.flexible,
    )
    assert str(head.stable_versions) == "0-2"
    timeout, names, rack, parts, old, again = spec.top.fields
    assert timeout == FieldSpec("TimeoutMs", "int32", VersionRange.parse("0+"), default="-1", ignorable=True)
    assert (names.is_array, names.element, names.is_nullable, names.default) == (True, "string", True, "null")
    assert (rack.tag, str(rack.tagged), rack.is_nullable, rack.attribute) == (5, "2+", False, "rack")
    assert (parts.element, again.element) == ("Part", "Shared")
    assert str(spec.flexible_versions(old)) == "none"
    assert str(spec.flexible_versions(names)) == "2+"
    assert {name: [f.name for f in struct.fields] for name, struct in spec.structs.items()} == {
        "Part": ["Id", "Deep", "Last"],
        "Deeper": ["Flag"],
        "Shared": ["Id"],
    }


def test_min_struct_size():
    spec = parse_table("FooRequest", TABLE)
    assert [min_struct_size(spec, spec.structs["Part"], version) for version in (0, 1, 2)] == [3, 4, 4]
    # timeout, names from v1, parts, old, again; tags from v2
    assert [min_struct_size(spec, spec.top, version) for version in (0, 1, 2)] == [14, 18, 10]


def test_message_spec_is_cached():
    assert message_spec("FetchRequest") is message_spec("FetchRequest")
    with pytest.raises(KeyError):
        message_spec("Nothing")
