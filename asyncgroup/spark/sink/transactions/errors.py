"""The error of the transactional sink."""

from __future__ import annotations

from asyncgroup.errors import AsyncGroupError

__all__ = ["TransactionalSinkError"]


class TransactionalSinkError(AsyncGroupError):
    """A batch that the transactional sink cannot write or commit; the text says why and what to do.

    Spark keeps only the text of a Python sink's error, so there are no attributes.
    """
