"""The context of a task that has more and more open deliveries."""

from __future__ import annotations

import contextvars
from collections.abc import Callable

from opentelemetry.context import Context, get_current
from opentelemetry.trace import get_current_span

from asyncgroup.telemetry.otel.current_span import _BEFORE, make_current, outer_context, take_back
from tests.telemetry.spans import Sdk


def alone(function: Callable[[], None]) -> None:
    """Run a function in a context that ends with it."""
    contextvars.Context().run(function)


def depth() -> int:
    count, context = 0, get_current()
    while isinstance(before := context.get(_BEFORE), Context):
        count, context = count + 1, before
    return count


def test_the_chain_of_contexts_is_bounded() -> None:
    def run() -> None:
        tracer, spans = Sdk().tracer, []
        for number in range(100):
            spans.append(tracer.start_span(str(number)))
            make_current(spans[-1], outer_context())
            assert depth() <= 9
            if number >= 3:  # a pipeline: three are always open
                spans[number - 3].end()
                take_back(spans[number - 3])
                assert get_current_span() is spans[-1]
        for span in reversed(spans):
            if span.is_recording():
                span.end()
                take_back(span)
        assert not get_current_span().get_span_context().is_valid

    alone(run)


def test_a_span_that_ends_elsewhere_is_dropped_at_the_next_step() -> None:
    def run() -> None:
        tracer = Sdk().tracer
        first, second = tracer.start_span("first"), tracer.start_span("second")
        make_current(first, outer_context())
        other = contextvars.copy_context()
        other.run(first.end)
        other.run(take_back, first)
        assert get_current_span() is first
        make_current(second, outer_context())
        second.end()
        take_back(second)
        assert get_current() == Context()

    alone(run)
