"""The set of claims: what an assignment revokes and adds."""

from __future__ import annotations

from hypothesis import given, strategies as st

from asyncgroup.errors import Rebalanced
from asyncgroup.group.membership import ClaimChanges
from asyncgroup.group.sessions.state import ClaimSet
from asyncgroup.model import TopicPartition
from tests.group.parts import end_claim, make_session

PARTITIONS = st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 3)), unique=True)


def by_topic(partitions: list[tuple[str, int]]) -> dict[str, list[int]]:
    return {topic: [n for t, n in partitions if t == topic] for topic in {t for t, _ in partitions}}


async def test_a_claim_in_both_assignments_is_not_touched() -> None:
    session, _ = make_session([("orders", 0), ("orders", 1), ("orders", 2)])
    claims = session._inner.claims
    kept = claims.get(("orders", 0))
    assert claims.apply({"orders": [0, 2, 3]}) == ClaimChanges(
        [TopicPartition("orders", 1)], [TopicPartition("orders", 3)]
    )
    assert claims.get(("orders", 0)) is kept
    assert kept is not None
    assert not kept.ended
    revoked = claims.get(("orders", 1))
    assert revoked is not None, "until it is removed, its marks can be committed"
    end_claim(revoked, Rebalanced("revoked"))
    claims.remove(revoked.tp)
    assert [claim.partition for claim in claims] == [0, 2]
    assert claims.owned == [("orders", 0), ("orders", 2), ("orders", 3)]
    assert repr(claims) == "<ClaimSet: 2 claims, 1 starting>"


async def test_an_empty_assignment_revokes_all() -> None:
    session, _ = make_session([("orders", 1), ("audit", 0), ("orders", 0)])
    assert session._inner.claims.apply({}) == ClaimChanges([("audit", 0), ("orders", 0), ("orders", 1)], [])


def test_a_partition_that_is_starting_is_added_once_and_may_be_withdrawn() -> None:
    claims, tp = ClaimSet(), TopicPartition("orders", 0)
    assert claims.apply({"orders": [0]}) == ClaimChanges([], [tp])
    assert claims.apply({"orders": [0]}) == ClaimChanges([], [])
    assert claims.is_starting(tp, claims.version)
    assert claims.apply({"orders": []}) == ClaimChanges([], []), "no claim was given out"
    assert not claims.is_starting(tp, claims.version)
    assert claims.owned == []


def test_a_start_offset_from_before_the_partition_was_withdrawn_is_not_used() -> None:
    claims, tp = ClaimSet(), TopicPartition("orders", 0)
    claims.apply({"orders": [0]})
    requested = claims.version
    claims.apply({"orders": [0, 1]})
    assert claims.is_starting(tp, requested)
    claims.apply({"orders": [1]})
    claims.apply({"orders": [0, 1]})
    assert not claims.is_starting(tp, requested)
    assert claims.is_starting(tp, claims.version)


@given(st.lists(PARTITIONS))
def test_the_changes_lead_from_one_assignment_to_the_next(assignments: list[list[tuple[str, int]]]) -> None:
    claims, owned = ClaimSet(), set()
    for assignment in assignments:
        changes = claims.apply(by_topic(assignment))
        assert not set(changes.revoked) & set(changes.added)
        owned = (owned - set(changes.revoked)) | set(changes.added)
        owned &= set(assignment)  # what was starting still is withdrawn without a revocation
        assert set(claims.owned) == owned == set(assignment)
