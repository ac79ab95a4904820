"""The table of names is that of the package opentelemetry-semantic-conventions, in the same version of the schema."""

from __future__ import annotations

from dataclasses import fields

from opentelemetry.semconv import schemas
from opentelemetry.semconv._incubating.attributes import messaging_attributes
from opentelemetry.semconv._incubating.metrics import messaging_metrics
from opentelemetry.semconv.attributes import error_attributes
from opentelemetry.semconv.version import __version__

from asyncgroup.telemetry.otel.semantic_names import CURRENT, NAMES

MODULES = messaging_attributes, messaging_metrics, error_attributes


def test_every_name_is_in_the_registry() -> None:
    assert __version__ == "0.66b2"
    known = {
        value
        for module in MODULES
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, str)
    }
    used = {getattr(CURRENT, field.name) for field in fields(CURRENT)} - {CURRENT.schema_url}
    assert used <= known
    assert len(used) == len(fields(CURRENT)) - 1


def test_no_name_is_deprecated() -> None:
    """The deprecated names, which other instrumentations of Kafka clients still write."""
    values = set(map(str, (getattr(CURRENT, field.name) for field in fields(CURRENT))))
    assert not values & {
        "messaging.kafka.message.offset",
        "messaging.kafka.consumer.group",
        "messaging.kafka.destination.partition",
        "messaging.operation",
        "messaging.client.published.messages",
        "messaging.publish.duration",
        "messaging.receive.duration",
        "messaging.process.messages",
    }


def test_the_schema_is_the_newest_that_the_package_knows() -> None:
    assert CURRENT.schema_url == schemas.Schemas.V1_44_0.value
    assert list(schemas.Schemas)[-1].value == CURRENT.schema_url
    assert {version: names.schema_url.rpartition("/")[2] for version, names in NAMES.items()} == {
        version: version for version in NAMES
    }
