"""The index of the batches' largest timestamps, compared with a plain list."""

from __future__ import annotations

from itertools import islice

from hypothesis import given, strategies as st

from asyncgroup.broker.log.batch_index import TimestampIndex

STAMPS = st.integers(-1, 30)
STEPS = st.one_of(
    st.tuples(st.just("add"), st.lists(STAMPS, max_size=200)),
    st.tuples(st.just("ascend"), st.integers(0, 3000)),
    st.tuples(st.just("front"), st.integers(0, 1500)),
    st.tuples(st.just("behind"), st.integers(0, 1500)),
)


def check(index: TimestampIndex, stamps: list[int]) -> None:
    assert len(index) == len(stamps)
    for start in {0, 1, len(stamps) // 3, max(len(stamps) - 1, 0), len(stamps)}:
        for wanted in {-1, 0, 7, 30, 500, *stamps[start : start + 3], max(stamps, default=0) + 1}:
            found = next((i for i in range(start, len(stamps)) if stamps[i] >= wanted), None)
            assert index.first_at_least(wanted, start) == found
    best = sorted(range(len(stamps)), key=lambda i: (-stamps[i], i))
    assert list(islice(index.latest_first(), 50)) == best[:50]


@given(st.lists(STEPS, max_size=12))
def test_it_equals_a_list(steps):
    index, stamps = TimestampIndex(), []
    for kind, what in steps:
        if kind in ("add", "ascend"):
            for stamp in what if kind == "add" else range(what):
                index.add(stamp)
                stamps.append(stamp)
        elif kind == "front":
            index.drop_front(min(what, len(stamps)))
            del stamps[:what]
        else:
            keep = max(len(stamps) - what, 0)
            index.truncate(keep)
            del stamps[keep:]
        check(index, stamps)


def test_all_positions_in_descending_order_of_time():
    index = TimestampIndex()
    stamps = [(number * 7919) % 1000 for number in range(5000)]
    for stamp in stamps:
        index.add(stamp)
    index.drop_front(700)
    assert list(index.latest_first()) == sorted(range(4300), key=lambda i: (-stamps[700 + i], i))


def test_a_search_does_not_compare_every_timestamp():
    comparisons = 0

    class Stamp(int):
        def __ge__(self, other) -> bool:
            nonlocal comparisons
            comparisons += 1
            return int(self) >= other

        def __neg__(self) -> int:
            nonlocal comparisons
            comparisons += 1
            return -int(self)

    index = TimestampIndex()
    for stamp in range(100_000):
        index.add(Stamp(stamp))
    for wanted in (-1, 5, 31, 32, 1024, 54_321, 99_999):
        comparisons = 0
        assert index.first_at_least(wanted) == max(wanted, 0)
        assert comparisons <= 2 * 4 * 32
    comparisons = 0
    assert next(index.latest_first()) == 99_999
    assert comparisons <= 4 * 32
    comparisons = 0
    assert index.first_at_least(100_000) is None
    assert comparisons <= 2 * 4 * 32
