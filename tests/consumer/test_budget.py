"""Budget: even shares, no fetch beyond a share, and no partition starves."""

from __future__ import annotations

from hypothesis import given, strategies as st

from asyncgroup.consumer.fetch_state import Budget

SIZES = st.integers(1, 1 << 40)


@given(total=SIZES, largest=SIZES, members=st.integers(0, 10_000), held=st.integers(0, 1 << 41))
def test_shares_and_fetch_sizes_are_consistent(total: int, largest: int, members: int, held: int) -> None:
    budget = Budget(total, largest)
    budget.partition_count = members
    assert budget.share * max(1, members) <= total
    assert 1 <= budget.fetch_size <= max(1, min(largest, budget.share // 2))
    assert budget.allows(0), "a partition that holds nothing may always be fetched"
    if held and budget.allows(held):
        assert held + budget.fetch_size <= budget.share
    # a fetch that is allowed with `held` bytes is allowed with fewer
    if budget.allows(held):
        assert budget.allows(held // 2)
    assert budget.may_resume(0)
    assert budget.may_resume(held) == (held <= budget.share // 2)


@given(total=SIZES, largest=SIZES, members=st.integers(1, 1000), asks=st.integers(1, 50))
def test_allowed_fetches_stay_within_the_share(total: int, largest: int, members: int, asks: int) -> None:
    budget = Budget(total, largest)
    budget.partition_count = members
    held = 0
    for _ in range(asks):
        if budget.allows(held):
            held += budget.fetch_size
    assert held <= max(budget.share, 1)


def test_one_batch_can_be_handled_while_the_next_is_fetched() -> None:
    budget = Budget(1000, 10_000)
    budget.partition_count = 5
    assert (budget.share, budget.fetch_size) == (200, 100)
    assert budget.allows(100)
    assert not budget.allows(101)
