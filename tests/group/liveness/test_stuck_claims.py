"""StuckClaims against a model: after any steps and at any time it finds exactly the claims without progress."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given, strategies as st

from asyncgroup.errors import ClaimStuck
from asyncgroup.group.liveness.stalls import CHECKS, StuckClaims
from asyncgroup.model import TopicPartition

LIMIT = 10.0


class FakeClaim:
    """The claim of a partition, with the state that StuckClaims reads."""

    def __init__(self, number: int) -> None:
        self.tp = TopicPartition("orders", number)
        self.progress = 0
        self.holds_record = False
        self.renewed_until = float("-inf")
        self.silent_since = 0.0  # for the model

    @property
    def _inner(self) -> Any:
        return SimpleNamespace(
            progress=(self.progress,),
            holds_record=self.holds_record,
            is_renewed=lambda now: now < self.renewed_until,
        )

    def act(self, what: str, now: float) -> None:
        """Do something that a handler does. One that takes the next record makes progress, so "take" is the first one only."""
        if what == "take" and self.holds_record:
            return
        if what == "progress":
            self.progress += 1
            self.renewed_until = float("-inf")
        elif what == "renew":
            self.renewed_until = now + 2 * LIMIT
        else:
            self.holds_record = what == "take"
        self.silent_since = now


ACTIONS = st.tuples(
    st.floats(0.01, LIMIT / CHECKS),
    st.integers(0, 2),
    st.sampled_from(["progress", "take", "wait", "renew", ""]),
)


@given(st.lists(ACTIONS, max_size=60))
def test_it_finds_the_claims_without_progress(actions: list[tuple[float, int, str]]) -> None:
    claims = [FakeClaim(number) for number in range(3)]
    stuck = StuckClaims("g", LIMIT, lambda: claims)  # type: ignore[arg-type,return-value]
    now = 0.0
    for pause, number, action in actions:
        now += pause
        if action:
            claims[number].act(action, now)
        found = stuck.find(now)
        silent = {
            claim.tp: now - claim.silent_since
            for claim in claims
            if claim.holds_record and now >= claim.renewed_until
        }
        if found is None:
            # it saw the present value for the first time at most one pause after it came, or after a renewal ended
            assert all(
                seconds < LIMIT * (1 + 1 / CHECKS) or claims[tp.partition].renewed_until > 0
                for tp, seconds in silent.items()
            )
        else:
            assert isinstance(found, ClaimStuck)
            assert silent[TopicPartition(found.topic, found.partition)] >= LIMIT
            assert found.seconds >= LIMIT


def test_off() -> None:
    claim = FakeClaim(0)
    claim.act("take", 0.0)
    stuck = StuckClaims("g", 0.0, lambda: [claim])  # type: ignore[arg-type,list-item]
    assert stuck.find(0.0) is stuck.find(1e9) is None
    assert stuck.period == float("inf")
