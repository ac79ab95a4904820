"""Hash ranges: Pulsar's hash and its ranges, and random programs of consumers that come and go."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from asyncgroup.errors import ConfigError
from asyncgroup.hashing.key_ranges import (
    RANGE_SIZE,
    AutoSplitRanges,
    ExplicitRanges,
    KeyRange,
    key_hash,
    murmur3_32,
    parse_ranges,
)

SIZE = 64
"""A small number of hashes: properties are checked for each one."""

# -- the hash -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "seed", "expected"),
    [
        (b"", 0, 0),
        (b"", 1, 0x514E28B7),
        (b"", 0xFFFFFFFF, 0x81F16F39),
        (b"\0", 0, 0x514E28B7),
        (b"\0\0", 0, 0x30F4C306),
        (b"\0\0\0", 0, 0x85F0B427),
        (b"\0\0\0\0", 0, 0x2362F9DE),
        (b"\x21", 0, 0x72661CF4),
        (b"\x21\x43", 0, 0xA0F7B07A),
        (b"\x21\x43\x65", 0, 0x7E4A8634),
        (b"\x21\x43\x65\x87", 0, 0xF55B516B),
        (b"\x21\x43\x65\x87", 0x5082EDEE, 0x2362F9DE),
        (b"\xff\xff\xff\xff", 0, 0x76293B50),
        (b"test", 0x9747B28C, 0x704B81DC),
        (b"Hello, world!", 0, 0xC0363E43),
        (b"The quick brown fox jumps over the lazy dog", 0, 0x2E4FF723),
    ],
)
def test_murmur3_of_public_test_vectors(data: bytes, seed: int, expected: int) -> None:
    assert murmur3_32(data, seed) == expected


def test_murmur3_has_the_verification_value_of_smhasher() -> None:
    hashes = b"".join(murmur3_32(bytes(range(i)), 256 - i).to_bytes(4, "little") for i in range(256))
    assert murmur3_32(hashes) == 0xB0F57EE3


@pytest.mark.parametrize(
    ("key", "hashed"),  # Pulsar's HashTest.murmur3_32HashTest: without the sign bit
    [
        (b"k1", 2110152746),
        (b"k2", 1479966664),
        (b"key1", 462881061),
        (b"key2", 1936800180),
        (b"key01", 39696932),
        (b"key02", 751761803),
    ],
)
def test_the_hash_of_a_key_is_that_of_pulsar(key: bytes, hashed: int) -> None:
    assert murmur3_32(key) & 0x7FFFFFFF == hashed
    assert key_hash(key) == hashed % 65536


def test_the_sign_bit_does_not_matter() -> None:
    assert murmur3_32(b"test") >= 1 << 31
    assert key_hash(b"test") == (0xBA6BD213 & 0x7FFFFFFF) % 65536


def test_no_key_has_hash_0() -> None:
    assert key_hash(b"") == 1  # murmur3 of nothing is 0
    found = next(key for i in range(1 << 20) if murmur3_32(key := b"%d" % i) % RANGE_SIZE == 0)
    assert key_hash(found) == 1


@given(st.binary(max_size=40))
def test_hashes_are_within_the_ranges(key: bytes) -> None:
    assert 1 <= key_hash(key) < RANGE_SIZE == 65536


# -- a range ------------------------------------------------------------------------------------------------------------


def test_both_ends_belong_to_a_range() -> None:
    some = KeyRange(3, 5)
    assert [number for number in range(10) if number in some] == [3, 4, 5]
    assert repr(some) == "[3, 5]"
    assert some.intersect(KeyRange(5, 9)) == KeyRange(5, 5)
    assert some.intersect(KeyRange(6, 9)) is None


@pytest.mark.parametrize(
    ("start", "end"), [(-1, 5), (5, 4), (0, 65536), (0.0, 5), ("0", "5"), (None, 5), (False, True)]
)
def test_invalid_range(start: object, end: object) -> None:
    with pytest.raises(ConfigError, match="0 <= start <= end <= 65535") as caught:
        KeyRange(start, end)
    assert caught.value.key == "key_ranges"
    assert caught.value.value == (start, end)


def test_ranges_may_be_pairs() -> None:
    expected = (KeyRange(0, 9), KeyRange(20, 29))
    assert parse_ranges([(20, 29), KeyRange(0, 9)]) == expected
    assert parse_ranges(iter(expected)) == expected
    assert parse_ranges(KeyRange(0, 9)) == expected[:1]


@pytest.mark.parametrize(
    "ranges", ["0-5", b"05", 7, None, [], [7], [(1, 2, 3)], [("0", "5")], [(5, 4)], (0, 32767)]
)
def test_values_that_are_not_ranges(ranges: object) -> None:
    with pytest.raises(ConfigError, match="start <= end"):
        parse_ranges(ranges)


def test_the_error_for_overlapping_ranges_of_a_consumer_names_them() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_ranges([(50, 90), (0, 60)])
    expected = "hash ranges that do not overlap; [50, 60] is in [0, 60] as well"
    assert str(caught.value) == f"key_ranges=[50, 90] is not allowed: {expected}"


# -- ranges that are divided automatically ------------------------------------------------------------------------------


def split(names: str, size: int = RANGE_SIZE) -> AutoSplitRanges:
    ranges = AutoSplitRanges(size)
    for name in names:
        ranges.add(name)
    return ranges


def owners(ranges: AutoSplitRanges | ExplicitRanges, size: int = SIZE) -> list[str | None]:
    return [ranges.owner(number) for number in range(size)]


def test_without_a_consumer_no_hash_has_one() -> None:
    assert split("").owner(5) is None
    assert split("").ranges() == {}
    assert split("").gaps() == (KeyRange(1, 65535),)
    assert split("a").gaps() == ()


def test_the_widest_range_is_divided() -> None:
    # Pulsar's HashRangeAutoSplitStickyKeyConsumerSelectorTest.testGetConsumerKeyHashRanges, whose highest range ends
    # at 64, a hash that no key has
    assert split("1234", SIZE).ranges() == {
        "3": (KeyRange(0, 16),),
        "2": (KeyRange(17, 32),),
        "4": (KeyRange(33, 48),),
        "1": (KeyRange(49, 63),),
    }
    assert split("12345", SIZE).ranges()["5"] == (KeyRange(0, 8),), "the lowest of several"
    assert split("12").ranges() == {"2": (KeyRange(0, 32768),), "1": (KeyRange(32769, 65535),)}


def test_the_range_of_a_removed_consumer_goes_to_its_neighbour() -> None:
    ranges = split("1234", SIZE)
    ranges.remove("2")
    assert ranges.ranges()["4"] == (KeyRange(17, 48),)
    ranges.remove("1")  # the highest range: to the one below
    assert ranges.ranges() == {"3": (KeyRange(0, 16),), "4": (KeyRange(17, 63),)}
    ranges.remove("1")
    assert ranges.ranges() == {"3": (KeyRange(0, 16),), "4": (KeyRange(17, 63),)}


def test_ranges_cannot_be_divided_without_end() -> None:
    ranges = split("abc", 4)
    assert owners(ranges, 4) == ["c", "c", "b", "a"]
    with pytest.raises(ConfigError, match="'d' is not allowed: at most 3 consumers"):
        ranges.add("d")
    assert set(owners(ranges, 4)) == set("abc")


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 11)), max_size=30))
def test_every_hash_has_one_consumer_and_no_other_hashes_move(program: list[tuple[bool, int]]) -> None:
    ranges, present = AutoSplitRanges(SIZE), set[str]()
    for is_added, number in program:
        name, before = f"consumer-{number}", owners(ranges)
        if is_added and name not in present:
            ranges.add(name)
            present.add(name)
        elif not is_added:
            ranges.remove(name)
            present.discard(name)
        after = owners(ranges)
        assert set(after) == (present or {None})
        # a consumer that is added takes hashes over, one that is removed loses its own; nothing else changes
        moved = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
        assert all(name in (old, new) for old, new in moved)
        assert is_added or name not in after
        containing = [
            [owner for owner, each in ranges.ranges().items() if any(hashed in one for one in each)]
            for hashed in range(SIZE)
        ]
        assert containing == [[owner] if owner else [] for owner in after]


@given(st.integers(1, 40))
def test_the_widest_range_is_at_most_about_twice_the_narrowest(count: int) -> None:
    ranges = split("".join(chr(65 + number) for number in range(count))).ranges()
    widths = [each.end - each.start + 1 for (each,) in ranges.values()]
    assert max(widths) <= 2 * min(widths) + 2


# -- ranges that the consumers name -------------------------------------------------------------------------------------


def test_named_ranges() -> None:
    ranges = ExplicitRanges()
    assert ranges.owner(5) is None
    assert ranges.gaps() == (KeyRange(1, 65535),)
    ranges.add("a", [KeyRange(20, 29), KeyRange(1, 9)])
    ranges.add("b", [KeyRange(10, 14)])
    assert ranges.ranges() == {"a": (KeyRange(1, 9), KeyRange(20, 29)), "b": (KeyRange(10, 14),)}
    assert owners(ranges, 31) == [None, *"a" * 9, *"b" * 5, *[None] * 5, *"a" * 10, None]
    assert ranges.gaps() == (KeyRange(15, 19), KeyRange(30, 65535))
    ranges.add("c", [KeyRange(15, 19), KeyRange(30, 65535)])
    assert ranges.gaps() == ()
    ranges.remove("b")
    assert ranges.gaps() == (KeyRange(10, 14),)
    assert ranges.owner(10) is None
    ranges.add("d", [KeyRange(10, 14)])
    ranges.remove("c")
    ranges.add("e", [KeyRange(15, 19), KeyRange(30, 65534)])
    assert ranges.gaps() == (KeyRange(65535, 65535),)


def test_the_error_for_ranges_of_two_consumers_names_the_overlap() -> None:
    ranges = ExplicitRanges()
    ranges.add("fast", [KeyRange(0, 99), KeyRange(200, 299)])
    with pytest.raises(ConfigError) as caught:
        ranges.add("slow", [KeyRange(100, 199), KeyRange(290, 400)])
    expected = "hash ranges that do not overlap; [290, 299] belongs to consumer 'fast'"
    assert str(caught.value) == f"key_ranges=[290, 400] is not allowed: {expected}"
    assert ranges.owner(150) is None, "an error changes nothing"
    with pytest.raises(ConfigError, match="one range or more"):
        ranges.add("slow", [])


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.lists(st.tuples(st.integers(0, 63), st.integers(0, 63)), max_size=3)),
        max_size=12,
    )
)
def test_named_ranges_beside_a_table_of_all_hashes(program: list[tuple[int, list[tuple[int, int]]]]) -> None:
    ranges, table = ExplicitRanges(), dict[int, str]()
    for number, pairs in program:
        name = str(number)
        if name in table.values():
            ranges.remove(name)
            table = {hashed: owner for hashed, owner in table.items() if owner != name}
        else:
            wanted = [KeyRange(min(pair), max(pair)) for pair in pairs]
            hashes = [hashed for each in wanted for hashed in range(each.start, each.end + 1)]
            if hashes and len(set(hashes)) == len(hashes) and table.keys().isdisjoint(hashes):
                ranges.add(name, wanted)
                table |= dict.fromkeys(hashes, name)
            else:
                with pytest.raises(ConfigError):
                    ranges.add(name, wanted)
        assert owners(ranges) == [table.get(hashed) for hashed in range(SIZE)]
        gaps = ranges.gaps()
        unowned = [hashed for hashed in range(1, SIZE) if hashed not in table]
        assert [hashed for hashed in range(SIZE) if any(hashed in gap for gap in gaps)] == unowned
