"""The names of `ClientConfigurationData`, as Pulsar's Java client has them, are all known to PulsarConfig."""

from __future__ import annotations

from zipfile import ZipFile

from asyncgroup.errors import ConfigError
from asyncgroup.pulsar.config import PulsarConfig
from asyncgroup.testing.apache_pulsar import PULSAR_VERSION, pulsar_jars
from tests.wire.class_file import ClassFile

DATA = "org/apache/pulsar/client/impl/conf/ClientConfigurationData.class"
OF_CLIENT_CONF = {"authPlugin", "brokerServiceUrl", "tlsEnableHostnameVerification", "webServiceUrl"}


def refusal_of(name: str) -> str:
    """Return why a value of this name is refused, "" if it is not."""
    try:
        PulsarConfig.from_properties({name: "some value"})
    except ConfigError as error:
        return str(error)
    return ""


def test_every_name_of_javas_client(pulsar_at_hand: None) -> None:
    jar = pulsar_jars() / f"pulsar-client-original-{PULSAR_VERSION}.jar"
    with ZipFile(jar) as archive:
        methods = ClassFile(archive.read(DATA)).code
    names = {method[3].lower() + method[4:] for method in methods if method.startswith("set")}
    assert len(names) > 50
    assert [name for name in names | OF_CLIENT_CONF if "there is no such key" in refusal_of(name)] == []
    assert "there is no such key" in refusal_of("someName")
