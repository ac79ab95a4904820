"""Random groups of KIP-848 members with a model of their coordinator: one owner at every step, all owned in the end."""

from __future__ import annotations

import pytest

from asyncgroup.group.consumer.member_state import ConsumerMemberState, Reconciliation
from asyncgroup.wire import messages as m
from tests.group.consumer.coordinator_model import World

SEEDS = range(400)


@pytest.mark.parametrize("first", range(0, len(SEEDS), 100))
def test_each_partition_has_one_owner_at_every_step(first: int) -> None:
    for seed in SEEDS[first : first + 100]:
        World(seed).run(150)


class ReportsEarly(ConsumerMemberState):
    """Reports a revocation when it begins."""

    def begin_reconciliation(self, names: object) -> Reconciliation | None:
        step = super().begin_reconciliation(names)  # type: ignore[arg-type]
        if step is not None:
            self.owned = step.owned
        return step


class ForgetsLostResponses(ConsumerMemberState):
    """Sends only changes after a lost response."""

    def on_lost_response(self) -> None:
        self._confirmed, self._in_flight = self._in_flight or self._confirmed, None


class SendsNullForNothing(ConsumerMemberState):
    """Sends null for an empty list, also with all fields."""

    def next_request(self) -> m.ConsumerGroupHeartbeatRequest:
        request = super().next_request()
        return request if request.topic_partitions or self.epoch == 0 else self._without(request)

    def _without(self, request: m.ConsumerGroupHeartbeatRequest) -> m.ConsumerGroupHeartbeatRequest:
        request.topic_partitions = None
        return request


class NeverReports(ConsumerMemberState):
    """Sends no list after the join."""

    def next_request(self) -> m.ConsumerGroupHeartbeatRequest:
        request = super().next_request()
        if self.epoch > 0 and request.rebalance_timeout_ms < 0:
            request.topic_partitions = None
        return request


@pytest.mark.parametrize("mutant", [ReportsEarly, ForgetsLostResponses, SendsNullForNothing, NeverReports])
def test_mutants_are_found(mutant: type[ConsumerMemberState]) -> None:
    def fails(seed: int) -> bool:
        try:
            World(seed, mutant).run(150)
        except AssertionError:
            return True
        return False

    assert any(fails(seed) for seed in SEEDS)
