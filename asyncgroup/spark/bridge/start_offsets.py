"""Start a session at offsets that the sink has stored with its rows, in place of the group's committed offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

from asyncgroup.checks import check_offset
from asyncgroup.errors import ConfigError
from asyncgroup.group import Claim, Session
from asyncgroup.lifecycle import wait_shielded
from asyncgroup.model import TopicPartition
from asyncgroup.spark.bridge.commit_metadata import from_metadata, to_metadata

__all__ = ["StartOffsetsFunction", "seek_to_starts"]

StartOffsetsFunction: TypeAlias = Callable[[Sequence[TopicPartition]], Mapping[TopicPartition, int]]
"""A sync function that returns the next offset to read for each of these partitions; it leaves out unknown ones."""


async def seek_to_starts(
    start_from: StartOffsetsFunction, session: Session, partitions: Sequence[TopicPartition]
) -> Mapping[TopicPartition, int]:
    """Seek the claims of `partitions`, and their marks, to the offsets that `start_from` returns; it runs in a thread.

    Returns these offsets. Claims that it leaves out start at the group's offset. Raises what `start_from` raises, and
    ConfigError if it returns something else than offsets of these partitions.
    """
    if not partitions:
        return {}
    starts = _validated(await _in_thread(start_from, partitions), partitions)
    claims = {TopicPartition(claim.topic, claim.partition): claim for claim in session.claims}
    for tp, offset in sorted(starts.items()):
        if tp in claims:
            _move_claim(session, claims[tp], offset)
    return starts


def _move_claim(session: Session, claim: Claim, offset: int) -> None:
    """Move a claim's position and mark to `offset`, forwards or backwards: the sink's offset wins over the group's."""
    place, metadata = (claim.topic, claim.partition, offset), claim.initial_metadata
    if (last := from_metadata(metadata)) is not None:
        metadata = to_metadata(last.number, offset)
    if offset > claim.next_mark:
        session.mark_offset(*place, metadata)
    elif offset < claim.next_mark:
        session.reset_offset(*place, metadata)
    if offset != claim.position:
        claim.seek(offset)


async def _in_thread(
    start_from: StartOffsetsFunction, partitions: Sequence[TopicPartition]
) -> Mapping[TopicPartition, int]:
    """Call `start_from` in a thread. A thread cannot be cancelled: a caller that is cancelled waits for its end."""

    def call() -> Mapping[TopicPartition, int] | BaseException:
        try:
            return start_from(list(partitions))
        except BaseException as error:  # noqa: BLE001  raised in the event loop; a future cannot hold StopIteration
            return error

    with ThreadPoolExecutor(1, thread_name_prefix="asyncgroup-start-offsets") as thread:
        found = await wait_shielded(asyncio.get_running_loop().run_in_executor(thread, call))
    if isinstance(found, BaseException):
        raise found
    return found


def _validated(found: object, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    if not isinstance(found, Mapping):
        raise ConfigError("start_from", found, "a function that returns offsets by TopicPartition")
    starts = {TopicPartition(*tp): check_offset(offset) for tp, offset in found.items()}
    if strange := sorted(starts.keys() - set(partitions)):
        raise ConfigError("start_from", ", ".join(map(str, strange)), "offsets of the partitions asked for")
    return starts
