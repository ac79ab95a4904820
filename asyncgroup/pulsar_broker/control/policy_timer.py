"""PolicyTimer: has the policies of all topics applied from time to time, while there are any (Pulsar's `BrokerService` has such timers)."""

from __future__ import annotations

from collections.abc import Callable

from asyncgroup.pulsar_broker.topics.namespaces import Namespaces
from asyncgroup.pulsar_broker.topics.policy_checks import apply_policies, need_checks
from asyncgroup.pulsar_broker.topics.topic import BrokerTopic

__all__ = ["PolicyTimer"]


class PolicyTimer:
    """The next check of the policies; none while no policy needs one, so that no timer wakes a broker without work."""

    def __init__(
        self,
        namespaces: Namespaces,
        close_producers: Callable[[BrokerTopic], object],
        start_timer: Callable[[Callable[[], None]], object],
    ) -> None:
        """`start_timer` calls a function after the time between two checks."""
        self._namespaces = namespaces
        self._close_producers = close_producers
        self._start_timer = start_timer
        self._is_waiting = False

    def __repr__(self) -> str:
        return f"<PolicyTimer {'waiting' if self._is_waiting else 'not needed'}>"

    def policies_changed(self) -> None:
        """Plan a check if a policy needs one now."""
        if not self._is_waiting and self._is_needed():
            self._is_waiting = True
            self._start_timer(self._check)

    def _is_needed(self) -> bool:
        own = [each.policies.own for each in self._namespaces.topics.values()]
        shared = [self._namespaces.broker_policies, *self._namespaces.policies.values()]
        return any(map(need_checks, [*shared, *own]))

    def _check(self) -> None:
        """Apply the policies of all topics, and do so again later."""
        for topic in list(self._namespaces.topics.values()):
            if apply_policies(topic):
                self._close_producers(topic)
        self._is_waiting = False
        self.policies_changed()
