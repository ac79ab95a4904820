"""Health of a work queue: the problems of its group member, and those of the queue itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from asyncgroup.group.health import Health
from asyncgroup.hashing.key_ranges import KeyRange
from asyncgroup.workqueue.group_engine.copy_topic_creation import CopyTopicCreation
from asyncgroup.workqueue.group_engine.queue_handler import QueueHandler
from asyncgroup.workqueue.publisher import TopicPublisher

__all__ = ["queue_health"]


def queue_health(
    member: Health,
    handler: QueueHandler | None,
    publisher: TopicPublisher,
    creation: CopyTopicCreation,
    gaps: Iterable[KeyRange],
    failure: BaseException | None,
) -> Health:
    """Return the health of the group member with the problems of the queue."""
    problems = [] if handler is None else handler.problems()
    problems += creation.problems()
    problems += [
        f"copies to topic {topic!r} fail: {error}" for topic, error in sorted(publisher.failing.items())
    ]
    if found := ", ".join(map(str, gaps)):
        problems.append(f"no consumer has the keys of the hash ranges {found}: their records wait")
    if failure is not None:
        problems.append(f"the queue has ended: {failure}")
    return replace(member, problems=(*member.problems, *problems)) if problems else member
