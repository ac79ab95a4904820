"""AsyncGroupInstrumentor: spans and metrics for programs that say nothing of them, as with `opentelemetry-instrument`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar

from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import TracerProvider

from asyncgroup.hooks import add_default_hook, remove_default_hook
from asyncgroup.telemetry.otel.metrics import OpenTelemetryMetrics
from asyncgroup.telemetry.otel.traces import OpenTelemetryTraces

__all__ = ["AsyncGroupInstrumentor"]


class AsyncGroupInstrumentor:
    """Gives OpenTelemetryTraces and OpenTelemetryMetrics to each client that is made after `instrument`.

        AsyncGroupInstrumentor().instrument()

    It is the entry point `opentelemetry_instrumentor` of this package, so that `opentelemetry-instrument python app.py` finds it.
    It has the methods of BaseInstrumentor of opentelemetry-instrumentation, and does not need that package. All objects are
    one: the state belongs to the process. A client that has hooks of these classes keeps its own.
    """

    _hooks: ClassVar[tuple[OpenTelemetryTraces, OpenTelemetryMetrics] | None] = None

    def __repr__(self) -> str:
        return f"<AsyncGroupInstrumentor: {'on' if self.is_instrumented_by_opentelemetry else 'off'}>"

    @property
    def is_instrumented_by_opentelemetry(self) -> bool:
        """Whether clients that are made now get the hooks."""
        return AsyncGroupInstrumentor._hooks is not None

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return the packages that it instruments: none but this one."""
        return ()

    def instrument(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        partitions: bool = False,
        **_: Any,
    ) -> None:
        """Begin; a second call does nothing. The providers are by default the global ones.

        With `partitions=True` there are also the metrics of each partition. Other arguments, which `opentelemetry-instrument`
        passes, have no effect.
        """
        if AsyncGroupInstrumentor._hooks is None:
            traces = OpenTelemetryTraces(tracer_provider)
            metrics = OpenTelemetryMetrics(meter_provider, partitions=partitions)
            AsyncGroupInstrumentor._hooks = traces, metrics
            add_default_hook(traces)
            add_default_hook(metrics)

    def uninstrument(self, **_: Any) -> None:
        """End: clients that exist make no more spans and metrics, and those that are made later have no hooks."""
        if (hooks := AsyncGroupInstrumentor._hooks) is not None:
            AsyncGroupInstrumentor._hooks = None
            for hook in hooks:
                remove_default_hook(hook)
                hook.close()
