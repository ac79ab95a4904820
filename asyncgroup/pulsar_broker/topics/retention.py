"""trim_ledgers: what a topic forgets by its retention policy (Pulsar's `ManagedLedgerImpl.internalTrimLedgers`).

A topic forgets whole ledgers, the oldest first: those that all durable subscriptions have acknowledged, when their time has passed since
they were closed, or while the topic has more bytes than it should. The ledger that is written to stays, so that a topic forgets
nothing before it has begun another one: when it is loaded, and when one is old or long (`currentLedgerIsFull`). This is looked at with
the other policies, not with each entry. A topic that was compacted keeps everything, as readers of the compacted topic need the
positions.
"""

from __future__ import annotations

from typing import Final

from asyncgroup.pulsar_broker.log.topic_log import TopicLog
from asyncgroup.pulsar_broker.topics.policies import RetentionPolicies
from asyncgroup.pulsar_broker.topics.topic import BrokerTopic

__all__ = ["trim_ledgers"]

MAX_ENTRIES: Final = 50_000
"""Entries of a ledger (`managedLedgerMaxEntriesPerLedger`)."""
MIN_AGE: Final = 10 * 60_000
"""ms before which no ledger is followed by another one because of its entries (`managedLedgerMinLedgerRolloverTimeMinutes`)."""
MAX_AGE: Final = 240 * 60_000
"""ms after which one is (`managedLedgerMaxLedgerRolloverTimeMinutes`)."""


def trim_ledgers(topic: BrokerTopic) -> None:
    """Begin a ledger if the last one is full, and forget those that the policy does not keep."""
    retention, log = topic.policies.retention, topic.log
    if retention is None or log.compacted is not None or not topic.name.is_persistent:
        return
    now = topic.now()
    log.date_ledger(now)
    if not topic.is_terminated and _is_full(log, now):
        log.roll(now)
    end = _end_of_forgotten(topic, retention, now)
    if end > log.first:
        for subscription in topic.subscriptions.values():
            subscription.skip_before(end)  # one that is not durable, others have acknowledged it
        log.trim(end)


def _is_full(log: TopicLog, now: int) -> bool:
    ledger = log.ledgers()[-1]
    age = now - log.began_at
    entries = ledger.end - ledger.start
    return bool(entries) and (age >= MAX_AGE or (entries >= MAX_ENTRIES and age > MIN_AGE))


def _end_of_forgotten(topic: BrokerTopic, retention: RetentionPolicies, now: int) -> int:
    """Return the index of the first entry to keep."""
    log = topic.log
    durable = [each.cursor.mark_delete + 1 for each in topic.subscriptions.values() if each.is_durable]
    acked = min([*durable, log.read_end])
    ledgers = log.ledgers()
    left, end = sum(ledger.size for ledger in ledgers), log.first
    for ledger in ledgers:
        if ledger.closed_at is None:
            break
        left -= ledger.size
        is_over = retention.time is not None and now - ledger.closed_at > retention.time * 1000
        is_too_much = retention.size is not None and left >= retention.size
        if ledger.end > acked or not (is_over or is_too_much):
            break
        end = ledger.end
    return end
