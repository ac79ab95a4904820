"""Trace context in headers: anything may be there, and what is written is found again."""

from __future__ import annotations

import pytest
from hypothesis import example, given, strategies as st
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from asyncgroup.model import Header
from asyncgroup.telemetry.otel.header_context import HeaderContext
from tests.telemetry.spans import Sdk

NAMES = st.sampled_from(["traceparent", "tracestate", "baggage", "TraceParent", "a", ""])
VALUES = st.none() | st.binary(max_size=60) | st.from_regex(rb"\A00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}\Z")
HEADERS = st.lists(st.tuples(NAMES, VALUES), max_size=4)
SPANS = Sdk()


@given(HEADERS)
@example([("traceparent", b"00-" + b"f" * 32 + b"-" + b"f" * 16 + b"-ff"), ("tracestate", b"=,=;\x00")])
def test_any_headers_can_be_read(headers: list[Header]) -> None:
    context = HeaderContext()
    into = Context({"kept": "1"})
    assert context.extract(headers, into)["kept"] == "1"
    found = context.origin(headers)
    assert found is None or (found.is_valid and found.is_remote)
    assert context.origin([]) is None


@given(HEADERS)
def test_a_context_that_was_written_is_read_and_the_rest_stays(headers: list[Header]) -> None:
    context, span = HeaderContext(TraceContextTextMapPropagator()), SPANS.tracer.start_span("send")
    written, key = context.inject(headers, span)
    found, sent = context.origin(written), span.get_span_context()
    assert found is not None
    assert (found.trace_id, found.span_id) == (sent.trace_id, sent.span_id)
    assert context.key_of(written) == key == context.key_of([("added later", b""), *written])
    others = {"traceparent", "tracestate"}
    assert [each for each in written if each[0] not in others] == [
        each for each in headers if each[0] not in others
    ]
    assert [name for name, _ in written].count("traceparent") == 1


def test_the_last_header_of_a_name_counts() -> None:
    first, last = (b"00-" + digit * 32 + b"-" + digit * 16 + b"-01" for digit in (b"1", b"2"))
    found = HeaderContext().origin([("traceparent", first), ("traceparent", last)])
    assert found is not None
    assert found.span_id == 0x2222222222222222


@pytest.mark.parametrize("name", ["traceparent", "tracestate", "baggage"])
@pytest.mark.parametrize(
    "value", [b"key=\x1b[2J", b"a=b\nasyncgroup: forged", b"%zz=\xc2\x9b", b"k=v," * 50_000]
)
def test_what_no_context_contains_is_not_in_the_log(
    name: str, value: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    parent = ("traceparent", b"00-" + b"1" * 32 + b"-" + b"1" * 16 + b"-01")
    HeaderContext().origin([parent, (name, value)])
    assert not caplog.records  # opentelemetry's propagators log a value that they cannot read, as it is


def test_a_failure_of_a_propagator_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(TextMapPropagator):
        fields = set()  # type: ignore[assignment]

        def inject(self, *_: object, **__: object) -> None: ...

        def extract(self, *_: object, **__: object) -> Context:
            raise ValueError("a propagator's bug")

    context, into = HeaderContext(Broken()), Context()
    for _ in range(3):
        assert context.extract([("a", b"")], into) is into
    assert caplog.text.count("cannot be read") == 1
