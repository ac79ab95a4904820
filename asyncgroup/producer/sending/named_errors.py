"""Errors of records name their topic and partition."""

from __future__ import annotations

from asyncgroup.errors import AsyncGroupError
from asyncgroup.lifecycle import add_note, copy_error
from asyncgroup.model import TopicPartition

__all__ = ["named_error"]


def named_error(error: Exception, place: TopicPartition | str) -> Exception:
    """Return a copy of an error that names a partition, or a topic if no partition was chosen.

    A partitioner's own error is copied as it is, with a note.
    """
    made = copy_error(error)
    if str(place) in str(made):
        return made
    if isinstance(made, AsyncGroupError):
        made.args = (f"records for {place}: {made}", *made.args[1:])
    else:
        add_note(made, f"raised for a record for {place}")
    return made
