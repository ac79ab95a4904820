"""Trace context in record headers, and in the properties of Pulsar: read and written with OpenTelemetry's propagators, by default `traceparent` (W3C).

Headers come from any program: what cannot be read as a context counts as none, and is never an error.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, cast

from opentelemetry import propagate
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.trace import Span, SpanContext, get_current_span, set_span_in_context

from asyncgroup.model import Header

if TYPE_CHECKING:
    from opentelemetry.propagators.textmap import Getter

__all__ = ["HeaderContext"]

_log = logging.getLogger("asyncgroup.telemetry")

_NOWHERE: Final = Context()

MAX_VALUE: Final = 8192
"""Bytes of a header that is read: the largest `baggage` of W3C, and what OpenTelemetry reads of `tracestate`."""


class HeaderContext:
    """Reads and writes the context of record headers; without a `propagator` with the global one of the moment."""

    def __init__(self, propagator: TextMapPropagator | None = None) -> None:
        self._propagator = propagator
        self._has_failed = False

    def __repr__(self) -> str:
        return f"<HeaderContext of {self._propagator or 'the global propagator'}>"

    def extract(self, headers: Sequence[Header], into: Context) -> Context:
        """Return the context `into` with what the headers contain; itself if they contain nothing that can be read."""
        if not headers:
            return into
        propagator = self._propagator or propagate.get_global_textmap()
        try:
            return propagator.extract(headers, into, _GETTER)
        except Exception:  # noqa: BLE001  another program's headers, and any propagator
            if not self._has_failed:
                self._has_failed = True
                _log.warning("the trace context of a record cannot be read; logged once", exc_info=True)
            return into

    def origin(self, headers: Sequence[Header]) -> SpanContext | None:
        """Return the span that the headers name; None without one that is valid."""
        if not headers:
            return None
        found = get_current_span(self.extract(headers, _NOWHERE)).get_span_context()
        return found if found.is_valid else None

    def inject(self, headers: Iterable[Header], span: Span) -> tuple[list[Header], bytes]:
        """Return the headers with the context of `span` in place of an older one, and the key by which `key_of` finds them.

        A record that is forwarded with all of its headers has the older one.
        """
        propagator = self._propagator or propagate.get_global_textmap()
        carrier: dict[str, str] = {}
        propagator.inject(carrier, set_span_in_context(span))
        fields = propagator.fields
        kept = [header for header in headers if header[0] not in fields]
        kept += [(name, value.encode()) for name, value in carrier.items()]
        return kept, self.key_of(kept)

    def inject_properties(self, properties: Mapping[str, str], span: Span) -> tuple[dict[str, str], bytes]:
        """Return the properties of a message of Pulsar with the context of `span`, and their key, as `inject` does."""
        propagator = self._propagator or propagate.get_global_textmap()
        carrier: dict[str, str] = {}
        propagator.inject(carrier, set_span_in_context(span))
        fields = propagator.fields
        kept = {name: text for name, text in properties.items() if name not in fields} | carrier
        return kept, self.key_of_properties(kept)

    def key_of(self, headers: Iterable[Header]) -> bytes:
        """Return the values of the headers with a context: they differ for each span."""
        fields = (self._propagator or propagate.get_global_textmap()).fields
        return b"|".join(header[1] or b"" for header in headers if header[0] in fields)

    def key_of_properties(self, properties: Mapping[str, str]) -> bytes:
        """Return `key_of` for properties."""
        return self.key_of(
            (name, text.encode("utf-8", "surrogateescape")) for name, text in properties.items()
        )


class _HeaderGetter:
    """A Getter that reads the last header of a name, as Kafka's `lastHeader`; values that are not UTF-8 are read as far as they are."""

    def get(self, carrier: Sequence[Header], key: str) -> list[str] | None:
        for name, value in reversed(carrier):
            if name == key:
                return None if value is None else _text(value)
        return None

    def keys(self, carrier: Sequence[Header]) -> list[str]:
        return [name for name, _ in carrier]


def _text(value: bytes) -> list[str] | None:
    """Return the value as text; None if no context has it: propagators log values that they cannot read, as they are."""
    if len(value) > MAX_VALUE:
        return None
    text = value.decode("utf-8", "replace")
    return [text] if text.replace("\t", " ").isprintable() else None


_GETTER: Final = cast("Getter[Sequence[Header]]", _HeaderGetter())
"""Not a subclass, which mypy refuses where the package is missing."""
