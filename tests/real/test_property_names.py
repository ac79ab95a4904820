"""Every property name in the Java client's list is known here: it is supported, refused or ignored."""

from __future__ import annotations

import re
import subprocess

import pytest

from asyncgroup.config import ClientConfig, ConsumerConfig, ProducerConfig
from asyncgroup.java import require_java
from asyncgroup.properties.ignored import IGNORED, IGNORED_PREFIXES
from asyncgroup.properties.names import PROPERTIES, REST, SECURITY, UNSUPPORTED
from asyncgroup.testing.apache_kafka import QUICK_START, kafka_jars

pytestmark = pytest.mark.usefixtures("kafka_at_hand")


@pytest.mark.parametrize(
    ("java_class", "ours", "minimum"),
    [
        ("org.apache.kafka.clients.consumer.ConsumerConfig", ConsumerConfig, 100),
        ("org.apache.kafka.clients.producer.ProducerConfig", ProducerConfig, 90),
    ],
    ids=["consumer", "producer"],
)
def test_every_property_name_of_java_is_known(
    java_class: str, ours: type[ClientConfig], minimum: int
) -> None:
    """Kafka's configuration classes print their documentation when run."""
    command = [
        str(require_java("ask Kafka").executable),
        *QUICK_START,
        "-cp",
        f"{kafka_jars()}/*",
        java_class,
    ]
    page = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    names = set(re.findall(r'<a id="([a-z0-9._-]+)"></a>', page))
    assert len(names) >= minimum
    read = {*PROPERTIES["ClientConfig"], *PROPERTIES[ours.__name__]}
    known = read | set(REST) | set(SECURITY) | set(UNSUPPORTED) | set(IGNORED)
    assert {
        name for name in names if name not in known and not name.startswith(tuple(IGNORED_PREFIXES))
    } == set()
