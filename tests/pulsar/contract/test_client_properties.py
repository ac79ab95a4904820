"""The names of the configurations of Pulsar's Java client are all known to those of this client."""

from __future__ import annotations

from typing import Any
from zipfile import ZipFile

import pytest

from asyncgroup.errors import ConfigError
from asyncgroup.pulsar.config import PulsarConfig
from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig
from asyncgroup.pulsar.consumer.consumer_properties import CONSUMER_NAMES
from asyncgroup.pulsar.java_properties import JavaNames
from asyncgroup.pulsar.producer.config import PulsarProducerConfig
from asyncgroup.pulsar.producer.producer_properties import PRODUCER_NAMES
from asyncgroup.testing.apache_pulsar import PULSAR_VERSION, pulsar_jars
from tests.wire.class_file import ClassFile

DATA = "org/apache/pulsar/client/impl/conf/{}ConfigurationData.class"
OF_CLIENT_CONF = {"authPlugin", "brokerServiceUrl", "tlsEnableHostnameVerification", "webServiceUrl"}


def refusal_of(name: str, cls: Any = PulsarConfig) -> str:
    """Return why a value of this name is refused, "" if it is not."""
    try:
        cls.from_properties({name: "some value"})
    except ConfigError as error:
        return str(error)
    return ""


def names_of_java(kind: str) -> set[str]:
    jar = pulsar_jars() / f"pulsar-client-original-{PULSAR_VERSION}.jar"
    with ZipFile(jar) as archive:
        methods = ClassFile(archive.read(DATA.format(kind))).code
    return {method[3].lower() + method[4:] for method in methods if method.startswith("set")}


def test_every_name_of_javas_client(pulsar_at_hand: None) -> None:
    names = names_of_java("Client")
    assert len(names) > 50
    assert [name for name in names | OF_CLIENT_CONF if "there is no such key" in refusal_of(name)] == []
    assert "there is no such key" in refusal_of("someName")


@pytest.mark.parametrize(
    ("kind", "cls", "known"),
    [
        ("Producer", PulsarProducerConfig, PRODUCER_NAMES),
        ("Consumer", PulsarConsumerConfig, CONSUMER_NAMES),
    ],
)
def test_every_name_of_producers_and_consumers(
    pulsar_at_hand: None, kind: str, cls: Any, known: JavaNames
) -> None:
    assert names_of_java(kind) == set(known.all_names)
    assert [name for name in known.all_names if "there is no such key" in refusal_of(name, cls)] == []
    assert "there is no such key" in refusal_of("someName", cls)
