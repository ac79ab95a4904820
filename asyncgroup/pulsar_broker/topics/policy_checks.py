"""What brokers do from time to time because of policies: messages expire, a backlog that is too large has consequences, ledgers are trimmed.

(Pulsar's `PersistentMessageExpiryMonitor`, `BacklogQuotaManager`.)
"""

from __future__ import annotations

from typing import Final

from asyncgroup.pulsar.wire.server_errors import ServerError
from asyncgroup.pulsar_broker.errors import ServerFailure
from asyncgroup.pulsar_broker.topics.policies import BacklogQuota, Policies
from asyncgroup.pulsar_broker.topics.retention import trim_ledgers
from asyncgroup.pulsar_broker.topics.topic import BrokerTopic

__all__ = ["apply_policies", "check_quota", "need_checks"]

SIZE: Final = "destination_storage"
TIME: Final = "message_age"
EVICTION: Final = "consumer_backlog_eviction"
_LEFT: Final = 0.9
"""The part of a quota that remains after an eviction."""

_CODES: Final = {
    "producer_request_hold": ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_ERROR,
    "producer_exception": ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_EXCEPTION,
}


def need_checks(policies: Policies) -> bool:
    """Whether there is anything to do for these policies."""
    return bool(policies.message_ttl or policies.backlog_quotas or policies.retention)


def check_quota(topic: BrokerTopic) -> None:
    """Raise ServerFailure if a topic takes no producer because of its backlog (`Topic.checkBacklogQuotaExceeded`)."""
    for quota in _exceeded(topic):
        code = _CODES.get(quota.policy)
        if code is not None:
            raise ServerFailure(
                code, f"Cannot create producer on topic with backlog quota exceeded: {topic.name}"
            )


def apply_policies(topic: BrokerTopic) -> bool:
    """Let messages expire, evict those beyond a quota, and trim ledgers. Return whether the producers of the topic are to be closed."""
    ttl = topic.policies.message_ttl
    if ttl:
        _expire(topic, topic.now() - ttl * 1000)
    closes = False
    for quota in _exceeded(topic):
        if quota.policy != EVICTION:
            closes = True
        elif quota is topic.policies.quota(TIME):
            _expire(topic, topic.now() - round(quota.limit_time * _LEFT * 1000))
        else:
            _evict(topic, quota.limit_size * _LEFT)
    trim_ledgers(topic)
    return closes


def _exceeded(topic: BrokerTopic) -> list[BacklogQuota]:
    """Return the quotas that the backlog of a topic exceeds."""
    found = []
    size, time = topic.policies.quota(SIZE), topic.policies.quota(TIME)
    if size is not None and 0 <= size.limit_size <= topic.backlog_size:
        found.append(size)
    if time is not None and time.limit_time > 0:
        oldest = min(
            (each.oldest for each in topic.subscriptions.values() if each.oldest is not None), default=None
        )
        if oldest is not None and topic.now() - oldest > time.limit_time * 1000:
            found.append(time)
    return found


def _expire(topic: BrokerTopic, time: int) -> None:
    for subscription in topic.subscriptions.values():
        subscription.expire(time)


def _evict(topic: BrokerTopic, size: float) -> None:
    """Acknowledge the first entries of the slowest subscriptions, until what is left has no more than `size` bytes."""
    for subscription in topic.subscriptions.values():
        while subscription.backlog and topic.log.size_from(subscription.cursor.mark_delete + 1) > size:
            subscription.skip(1)
