"""Rules for stored ranges (used, unused, to be joined), compared with simple models."""

from __future__ import annotations

from hypothesis import given, strategies as st

from asyncgroup.spark.sink.range_layout import (
    Compaction,
    RangeSlice,
    StoredRange,
    committed_slices,
    next_version,
    plan_compactions,
    ranges_replaced_by,
    unused_ranges,
    visible_slices,
)


def stored(start: int, end: int, version: int = 1, token: str = "0", *, partition: int = 0) -> StoredRange:
    return StoredRange("t", partition, start, end, version, token)


@st.composite
def layouts(draw: st.DrawFn) -> list[StoredRange]:
    """Generate ranges that overlap in any way, with unique names."""
    cuts = st.integers(0, 12)
    made = []
    for number in range(draw(st.integers(0, 8))):
        start, end = draw(cuts), draw(cuts)
        made.append(
            stored(start, end, draw(st.integers(1, 4)), f"{number:x}", partition=draw(st.integers(0, 1)))
        )
    return made


def painted(ranges: list[StoredRange]) -> dict[tuple[int, int], StoredRange]:
    """Return the valid range of each (partition, offset), by painting them in order of version."""
    canvas = {}
    for each in sorted(ranges, key=lambda each: (each.version, each.token)):
        for offset in range(each.start, each.end):
            canvas[each.partition, offset] = each
    return canvas


def spread(slices: list[RangeSlice]) -> dict[tuple[int, int], StoredRange]:
    canvas = {}
    for stored, start, end in slices:
        for offset in range(start, end):
            assert (stored.partition, offset) not in canvas, "an offset is read twice"
            canvas[stored.partition, offset] = stored
    return canvas


@given(layouts())
def test_each_offset_is_read_once_from_its_highest_version(ranges: list[StoredRange]) -> None:
    slices = visible_slices(ranges)
    assert spread(slices) == painted(ranges)
    assert [(p.stored.partition, p.start) for p in slices] == sorted(
        (p.stored.partition, p.start) for p in slices
    )
    assert all(slice_.stored.start <= slice_.start < slice_.end <= slice_.stored.end for slice_ in slices)


@given(layouts(), st.data())
def test_unused_ranges_can_be_removed_in_any_order(ranges: list[StoredRange], data: st.DataObject) -> None:
    hidden = unused_ranges(ranges)
    gone = data.draw(st.permutations(hidden))[: data.draw(st.integers(0, len(hidden)))]
    left = [each for each in ranges if each not in gone]
    assert painted(left) == painted(ranges)
    assert all(each in hidden for each in unused_ranges(left))


@given(layouts(), st.integers(0, 12), st.integers(1, 12))
def test_a_new_range_is_valid_for_all_of_its_offsets(
    ranges: list[StoredRange], start: int, size: int
) -> None:
    ranges = [each for each in ranges if each.partition == 0]
    new = stored(start, start + size, next_version(ranges, start, start + size), "ff")
    replaced = ranges_replaced_by(new, ranges)
    left = [*(each for each in ranges if each not in replaced), new]
    expected = painted(ranges) | {(0, offset): new for offset in range(start, start + size)}
    assert painted([*ranges, new]) == painted(left) == expected


@given(layouts(), st.integers(1, 60), st.booleans(), st.data())
def test_compaction_changes_nothing_that_is_read(
    ranges: list[StoredRange], target: int, everything: bool, data: st.DataObject
) -> None:
    ranges = [each for each in ranges if each.partition == 0]
    sizes = {each: data.draw(st.integers(0, 30)) for each in ranges}
    compactions = plan_compactions(ranges, sizes.__getitem__, target, everything=everything)
    before = painted(ranges)
    outputs = [compaction.stored(f"{number:x}") for number, compaction in enumerate(compactions)]
    after = painted([*ranges, *outputs])
    assert before.keys() == after.keys()
    committed = spread(committed_slices(ranges)).keys()
    taken = spread([slice_ for compaction in compactions for slice_ in compaction.slices])
    assert taken.keys() <= committed
    for compaction, output in zip(compactions, outputs, strict=True):
        assert [slice_.end for slice_ in compaction.slices[:-1]] == [
            slice_.start for slice_ in compaction.slices[1:]
        ]
        assert len(compaction.slices) > 1 or not compaction.slices[0].is_whole
        for offset in range(output.start, output.end):
            assert after[0, offset] == output
            assert taken[0, offset] == before[0, offset]
        assert (
            sum(sizes[slice_.stored] for slice_ in compaction.slices[1:]) < target
            or not compaction.slices[0].is_whole
        )
    for key in before.keys() - taken.keys():
        assert after[key] == before[key]


def test_names() -> None:
    each = StoredRange("_schemas", 3, 100, 250, 2, "ab12")
    assert each.name == "topic=_schemas/partition=3/offsets=100-250.v2.ab12"
    assert StoredRange.parse(each.name) == each
    empty = each._replace(empty=True)
    assert StoredRange.parse(empty.name) == empty
    for other in ("topic=t/partition=0", "_staging/ab", each.name + ".tmp", each.name.replace("v2", "v")):
        assert StoredRange.parse(other) is None


def test_a_redelivery_with_other_ranges() -> None:
    first = [stored(0, 100, 1, "a"), stored(100, 150, 1, "b")]
    longer = stored(0, 150, next_version(first, 0, 150), "c")
    assert ranges_replaced_by(longer, first) == first
    shorter = stored(0, 60, next_version(first, 0, 60), "c")
    assert ranges_replaced_by(shorter, first) == []
    assert visible_slices([*first, shorter]) == [
        RangeSlice(shorter, 0, 60),
        RangeSlice(first[0], 60, 100),
        RangeSlice(first[1], 100, 150),
    ]
    rest = stored(60, 130, next_version([*first, shorter], 60, 130), "d")
    assert ranges_replaced_by(rest, [*first, shorter]) == [first[0]]


def test_a_late_write_of_a_fenced_member_hides_no_row() -> None:
    committed = [stored(0, 100, 1, "a"), stored(100, 200, 1, "b")]
    zombie = stored(0, 60, next_version(committed, 0, 60), "c")
    assert ranges_replaced_by(zombie, committed) == []
    assert spread(visible_slices([*committed, zombie])).keys() == painted(committed).keys()


def test_the_last_range_is_not_known_to_be_committed() -> None:
    ranges = [stored(0, 10), stored(10, 20), stored(20, 30)]
    assert committed_slices(ranges) == [RangeSlice(ranges[0], 0, 10), RangeSlice(ranges[1], 10, 20)]
    compactions = plan_compactions(ranges, lambda _: 1, 100)
    assert compactions == [Compaction((RangeSlice(ranges[0], 0, 10), RangeSlice(ranges[1], 10, 20)), 2)]
    assert compactions[0].stored("ff") == stored(0, 20, 2, "ff")
    assert plan_compactions([], lambda _: 1, 100) == plan_compactions(ranges[:1], lambda _: 1, 100) == []


def test_gaps_end_a_compaction_and_large_ranges_are_left_alone() -> None:
    ranges = [stored(0, 10), stored(10, 20), stored(25, 30), stored(30, 40), stored(40, 50), stored(50, 60)]
    sizes = {each: 100 if each.start == 30 else 1 for each in ranges}
    compactions = plan_compactions(ranges, sizes.__getitem__, 100)
    assert [(compaction.stored("0").start, compaction.stored("0").end) for compaction in compactions] == [
        (0, 20)
    ]


def test_a_row_is_rewritten_a_logarithmic_number_of_times() -> None:
    """Ranges of size 1 are added; after each 20 of them there is a compaction."""
    ranges: list[StoredRange] = []
    sizes: dict[StoredRange, int] = {}
    written = 0
    for offset in range(2_000):
        ranges.append(stored(offset, offset + 1, 1, "0"))
        sizes[ranges[-1]] = 1
        if offset % 20 == 19:
            for compaction in plan_compactions(ranges, sizes.__getitem__, 10_000):
                output = compaction.stored("1")
                sizes[output] = sum(sizes[slice_.stored] for slice_ in compaction.slices)
                written += sizes[output]
                ranges.append(output)
            hidden = set(unused_ranges(ranges))
            ranges = [each for each in ranges if each not in hidden]
    assert len(ranges) < 50
    assert written < 2_000 * 12
