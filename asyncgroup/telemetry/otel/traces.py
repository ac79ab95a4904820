"""OpenTelemetryTraces: spans for records that are sent, processed and delivered."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, TypeVar

from opentelemetry.context import Context
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.trace import (
    Link,
    NoOpTracerProvider,
    ProxyTracerProvider,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TracerProvider,
    get_tracer,
    get_tracer_provider,
)

from asyncgroup.error_types import error_type
from asyncgroup.errors import AsyncGroupError
from asyncgroup.hooks import DeliveryOutcome
from asyncgroup.interceptor import ProducerRecord
from asyncgroup.model import Batch, Record, RecordMetadata
from asyncgroup.telemetry.otel.current_span import make_current, outer_context, take_back
from asyncgroup.telemetry.otel.header_context import HeaderContext
from asyncgroup.telemetry.otel.semantic_names import CURRENT, SCOPE
from asyncgroup.telemetry.otel.span_attributes import (
    Attributes,
    batch_attributes,
    record_attributes,
    record_key,
    result_attributes,
    send_attributes,
)
from asyncgroup.version import __version__

if TYPE_CHECKING:
    from asyncgroup.pulsar import MessageId, PulsarProducerRecord
    from asyncgroup.workqueue.delivery import Delivery

__all__ = ["ATTEMPT", "MAX_LINKS", "OUTCOME", "OpenTelemetryTraces"]

MAX_LINKS: Final = 128
"""Links of a span, at most: what OpenTelemetry's SDK keeps by default."""

ATTEMPT: Final = "asyncgroup.delivery.attempt"
"""The attribute with the number of a delivery, from 1 on."""

OUTCOME: Final = "asyncgroup.delivery.outcome"
"""The attribute with the outcome of a delivery, see `Hook.on_delivery_end`."""

Sent = TypeVar("Sent", ProducerRecord, "PulsarProducerRecord")

_MOST_OPEN: Final = 100_000
"""Spans of sends that are kept until their acknowledgement. An interceptor that drops headers makes a send's span lost."""

_MOST_ATTEMPTS: Final = 10_000
"""Former attempts that are remembered for the links of redeliveries."""

_FAILURES: Final = frozenset({"expired", "dead letter"})
"""Outcomes that are errors also without an exception."""

_AGAIN: Final = frozenset({"nacked", "retry", "expired", "released"})
"""Outcomes after which the record is delivered again."""


class OpenTelemetryTraces:
    """A hook and an interceptor that makes spans: `hooks=[traces]` of groups, consumers and queues, `interceptors=[traces]` of
    producers.

        traces = OpenTelemetryTraces()
        ConsumerGroup("localhost:9092", "billing", hooks=[traces])
        Producer("localhost:9092", interceptors=[traces])
        PulsarProducer("pulsar://localhost:6650", "orders", interceptors=[traces])

    - `send TOPIC`: from `send` to the acknowledgement. The record's headers get its context (`traceparent`) only if the span is
      recorded; of Pulsar its properties.
    - `process TOPIC`: from the delivery of a record until its reader asks for the next one. Its parent is the span of the send,
      by the record's headers; without one it is the span in which the loop runs. It is current in the body of the loop.
    - A batch of `batches()` is one such span, with links to the sends of its records, `max_links` at most.
    - A delivery of a work queue is one as well, until it is settled; a redelivery has a link to the former attempt.

    `tracer_provider` and `propagator` are by default the global ones. Without a provider that records, a fetched batch costs one
    check and a record nothing. Names follow the semantic conventions for messaging (schema 1.44), keys and values of records are
    never part of a span. One object may be given to all clients of a process. Importing it raises TelemetryUnavailable if
    opentelemetry-api is not installed.
    """

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        *,
        propagator: TextMapPropagator | None = None,
        max_links: int = MAX_LINKS,
    ) -> None:
        self._provider = tracer_provider
        self._tracer = get_tracer(SCOPE, __version__, tracer_provider, CURRENT.schema_url)
        self._headers = HeaderContext(propagator)
        self._max_links = max_links
        self._sends: OrderedDict[bytes, Span] = OrderedDict()  # by the context in their records' headers
        self._open: dict[int, Span] = {}  # by id() of what they are about
        self._attempts: OrderedDict[tuple[object, ...], SpanContext] = OrderedDict()
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<OpenTelemetryTraces: {len(self._sends)} sends, {len(self._open)} processings>"

    def close(self) -> None:
        """Make no more spans; those that are open end as before."""
        self._is_closed = True

    @property
    def is_recording(self) -> bool:
        """Whether there is a tracer that may record."""
        if self._is_closed:
            return False
        provider = self._provider or get_tracer_provider()
        return not (isinstance(provider, ProxyTracerProvider | NoOpTracerProvider) or _drops_all(provider))

    # --- sends ----------------------------------------------------------------------------------------------------------

    def on_send(self, record: Sent) -> Sent | None:
        """Begin the span of a send; return the record with its context, or None if it is not recorded."""
        if not self.is_recording:
            return None
        attributes = send_attributes(record)
        span = self._tracer.start_span(f"send {record.topic}", kind=SpanKind.PRODUCER, attributes=attributes)
        if not span.is_recording():
            return None
        try:
            sent, key = self._with_context(record, span)
        except Exception as error:
            # headers that are not valid: the producer refuses them next, with its own error
            _end(span, error)
            raise
        self._sends[key] = span
        if len(self._sends) > _MOST_OPEN:
            self._sends.popitem(last=False)[1].end()
        return sent

    def _with_context(self, record: Sent, span: Span) -> tuple[Sent, bytes]:
        """Return the record with the context of `span`, and the key of its span."""
        if isinstance(record, ProducerRecord):
            headers, key = self._headers.inject(record.headers, span)
            return record._replace(headers=headers), key
        properties, key = self._headers.inject_properties(record.properties or {}, span)
        return record._replace(properties=properties), key

    def _key_of(self, record: ProducerRecord | PulsarProducerRecord) -> bytes:
        if isinstance(record, ProducerRecord):
            return self._headers.key_of(record.headers)
        return self._headers.key_of_properties(record.properties or {})

    def on_acknowledgement(
        self,
        record: ProducerRecord | PulsarProducerRecord,
        metadata: RecordMetadata | MessageId | None,
        error: Exception | None,
    ) -> None:
        """End the span of a send."""
        if not self._sends or (span := self._sends.pop(self._key_of(record), None)) is None:
            return
        if metadata is not None:
            span.set_attributes(result_attributes(metadata))
        _end(span, error)

    # --- processing -------------------------------------------------------------------------------------------------------

    def wants_records(self) -> bool:
        """Whether spans of single records may be recorded."""
        return self.is_recording

    def on_process_start(self, group_id: str, records: Record | Batch) -> None:
        """Begin the span of a record or a batch, and make it current."""
        if not self.is_recording:
            return
        if isinstance(records, Record):
            self._begin(records, records, record_attributes(records, group_id))
        else:
            self._begin_batch(group_id, records)

    def on_process_end(self, group_id: str, records: Record | Batch, error: BaseException | None) -> None:  # noqa: ARG002
        """End the span of a record or a batch."""
        if (span := self._open.pop(id(records), None)) is not None:
            _end(span, error)
            take_back(span)

    def _begin(
        self, about: object, record: Record, attributes: Attributes, links: Iterable[Link] = ()
    ) -> None:
        """Begin a span that continues the trace of a record."""
        context = self._headers.extract(record.headers, outer_context())
        self._start(about, record.topic, context, attributes, links)

    def _begin_batch(self, group_id: str, batch: Batch) -> None:
        """Begin a span in the program's own trace: a batch has records of many."""
        attributes = batch_attributes(batch, group_id)
        self._start(batch, batch.topic, outer_context(), attributes, self._links(batch))

    def _links(self, batch: Batch) -> list[Link]:
        """Return links to the spans that sent the records of a batch, each once."""
        links: dict[int, Link] = {}
        try:
            for record in batch:
                if (sent := self._headers.origin(record.headers)) is not None:
                    links.setdefault(sent.span_id, Link(sent))
                    if len(links) >= self._max_links:
                        break
        except AsyncGroupError:  # records that cannot be decoded: the reader gets the error
            pass
        return list(links.values())

    def _start(
        self, about: object, topic: str, context: Context, attributes: Attributes, links: Iterable[Link]
    ) -> None:
        span = self._tracer.start_span(
            f"process {topic}", context, SpanKind.CONSUMER, attributes, tuple(links)
        )
        self._open[id(about)] = span
        make_current(span, context)

    # --- deliveries -------------------------------------------------------------------------------------------------------

    def on_delivery_start(self, delivery: Delivery) -> None:
        """Begin the span of a delivery, and make it current."""
        if not self.is_recording:
            return
        attributes = record_attributes(delivery.record, delivery.group_id)
        attributes[ATTEMPT] = delivery.attempt
        links = []
        if delivery.attempt > 1 and (former := self._attempts.get(record_key(delivery))) is not None:
            links.append(Link(former))
        self._begin(delivery, delivery.record, attributes, links)

    def on_delivery_end(
        self, delivery: Delivery, outcome: DeliveryOutcome, error: BaseException | None
    ) -> None:
        """End the span of a delivery with its outcome."""
        if (span := self._open.pop(id(delivery), None)) is None:
            return
        span.set_attribute(OUTCOME, outcome)
        if error is None and outcome in _FAILURES:
            span.set_attribute(CURRENT.error_type, outcome)
            span.set_status(Status(StatusCode.ERROR))
        self._note_attempt(delivery, outcome, span)
        _end(span, error)
        take_back(span)

    def _note_attempt(self, delivery: Delivery, outcome: DeliveryOutcome, span: Span) -> None:
        """Remember the attempt if the record is delivered again, else forget those before it."""
        if outcome in _AGAIN:
            self._attempts[record_key(delivery)] = span.get_span_context()
            if len(self._attempts) > _MOST_ATTEMPTS:
                self._attempts.popitem(last=False)
        elif delivery.attempt > 1:
            self._attempts.pop(record_key(delivery), None)


def _end(span: Span, error: BaseException | None) -> None:
    """End a span; a cancellation is not an error of the code that was cancelled."""
    if isinstance(error, Exception):
        span.set_attribute(CURRENT.error_type, error_type(error))
        span.record_exception(error)
        span.set_status(Status(StatusCode.ERROR, str(error)))
    span.end()


def _drops_all(provider: TracerProvider) -> bool:
    """Whether the provider is an SDK's with the sampler `always_off`; the API has no such question."""
    sampler = getattr(provider, "sampler", None)
    describe = getattr(sampler, "get_description", None)
    return describe is not None and describe() == "AlwaysOffSampler"
