"""Errors that heal by themselves: a group hands them out as a partition consumer does."""

from __future__ import annotations

from asyncgroup.consumer.error_stream import BUFFER, ErrorReader, ErrorStream

__all__ = ["BUFFER", "ErrorReader", "ErrorStream"]
