"""Make a span current in the task that reads, and take it back when it ends, without a `with` block around the user's code.

The reader's task gets the span at one `anext` and loses it at the next one. Deliveries may end elsewhere, by a timer or in
another task: nothing is taken back there, and the reader's task drops the ended span at its next step. So no token of
`attach` is kept, which could be used only in the context that it is from.
"""

from __future__ import annotations

from typing import Final

from opentelemetry.context import Context, attach, create_key, get_current
from opentelemetry.trace import Span, get_current_span, set_span_in_context

__all__ = ["make_current", "outer_context", "take_back"]

_BEFORE: Final = create_key("asyncgroup-before")
"""In a context with one of our spans: the context before it."""

_MAX_DEPTH: Final = 8
"""Spans of loops within loops in one task, at most; beyond that the context outside of all comes back."""


def outer_context() -> Context:
    """Return the current context without our spans: that of the program, in which the reader's loop runs."""
    context = get_current()
    while isinstance(before := context.get(_BEFORE), Context):
        context = before
    return context


def make_current(span: Span, context: Context) -> None:
    """Make a span current in this task, on top of `context`, the one that it was started in."""
    values = set_span_in_context(span, context).copy()
    values[_BEFORE] = _enclosing(get_current())
    attach(Context(values))


def take_back(span: Span) -> None:
    """Restore the context before a span that has ended, if it is current here."""
    context = get_current()
    if get_current_span(context) is span and isinstance(before := context.get(_BEFORE), Context):
        attach(_without_ended(before))


def _enclosing(context: Context) -> Context:
    """Return what comes back after a new span: the nearest context whose span has not ended, if not too many are open.

    A task that receives deliveries faster than it ends them always has open ones, and its contexts must not become a chain of all.
    """
    outer, depth = context, 0
    while isinstance(before := outer.get(_BEFORE), Context):
        outer, depth = before, depth + 1
    return outer if depth >= _MAX_DEPTH else _without_ended(context)


def _without_ended(context: Context) -> Context:
    """Return the context, or the nearest one before it whose span has not ended."""
    while (
        isinstance(before := context.get(_BEFORE), Context) and not get_current_span(context).is_recording()
    ):
        context = before
    return context
