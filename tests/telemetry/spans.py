"""An OpenTelemetry SDK whose finished spans a test can read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Sampler
from opentelemetry.trace import Span, get_current_span

from asyncgroup.telemetry import OpenTelemetryTraces

__all__ = ["Sdk", "current_name", "link_ids", "parent_id", "span_id"]


class Sdk:
    """A separate provider, not the global one, and hooks that use it."""

    def __init__(self, sampler: Sampler | None = None, **arguments: Any) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("tests")
        self.traces = OpenTelemetryTraces(self.provider, **arguments)

    @property
    def spans(self) -> list[ReadableSpan]:
        """The spans that have ended, in that order."""
        return list(self._exporter.get_finished_spans())

    def named(self, name: str, *, by: Callable[[ReadableSpan], Any] | None = None) -> list[ReadableSpan]:
        """Return those of this name, sorted by their offset, or by a function."""
        found = [span for span in self.spans if span.name == name]
        return sorted(
            found, key=by or (lambda span: (span.attributes or {}).get("messaging.kafka.offset", -1))
        )


def span_id(span: ReadableSpan | Span) -> int:
    context = span.get_span_context()
    assert context is not None
    return context.span_id


def parent_id(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def link_ids(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


def current_name() -> str:
    """Return the name of the current span, empty without one."""
    return getattr(get_current_span(), "name", "")
