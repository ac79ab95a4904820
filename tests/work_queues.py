"""Work queues on a consumer group, with settings of the queue and of its source together."""

from __future__ import annotations

from typing import Any, Final

from asyncgroup import GroupSource, WorkQueue

__all__ = ["core_of", "group_queue"]

_OF_THE_SOURCE: Final = (
    "config",
    "producer_config",
    "hooks",
    "transactional_copies",
    "migrate_from",
    "max_waiting",
)


def group_queue(servers: Any, group_id: Any, topics: Any, **options: Any) -> WorkQueue:
    """Return a queue; each of the options goes to where it belongs."""
    of_source = {name: options.pop(name) for name in _OF_THE_SOURCE if name in options}
    return WorkQueue(GroupSource(servers, group_id, topics, **of_source), **options)


def core_of(queue: WorkQueue) -> Any:
    """Return the internal parts of a queue: its engine and its dispatcher."""
    return queue._core
