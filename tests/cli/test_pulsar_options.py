"""The connection of a command to Pulsar: its properties, their sources, and each wrong combination as one error."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import pytest

from asyncgroup.cli import main
from asyncgroup.cli.app import _parser
from asyncgroup.cli.connection_options import ConnectionOptions, add_connection_options, connection_options
from asyncgroup.cli.pulsar_options import (
    pulsar_config,
    pulsar_consumer_config,
    pulsar_producer_config,
    pulsar_source_keys,
)
from asyncgroup.cli.pulsar_reading import PulsarReading
from asyncgroup.cli.work import CLOSING, _source
from asyncgroup.errors import ConfigError
from asyncgroup.pulsar.authentication import BasicAuthentication, TokenAuthentication
from asyncgroup.pulsar.config import PulsarConfig
from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig
from asyncgroup.pulsar.producer.config import PulsarProducerConfig
from asyncgroup.security import Tls

URL = "pulsar://10.0.0.1:6650"
TLS_URL = "pulsar+ssl://10.0.0.1"


Output = pytest.CaptureFixture[str]
CONSUME = ["consume", "-b", URL, "-t", "orders"]
PRODUCE = ["produce", "-b", URL, "-t", "orders"]
WORK = ["work", "m:f", "-b", URL, "--topics", "orders"]


def config_of(*arguments: str, url: str = URL, environ: dict[str, str] | None = None) -> PulsarConfig:
    parser = argparse.ArgumentParser()
    add_connection_options(parser, reads_pulsar=True)
    given = connection_options(parser.parse_args(["-b", url, *arguments]), environ or {})
    assert given.service_url == url
    return pulsar_config(given, environ or {})


def x(*properties: str) -> list[str]:
    return [word for each in properties for word in ("-X", each)]


def test_x_file_and_environment_in_this_order(tmp_path: Path) -> None:
    """The file may be Pulsar's own, or one of Kafka's clients."""
    file = tmp_path / "client.conf"
    file.write_text(
        "webServiceUrl=http://localhost:8080/\nbrokerServiceUrl=pulsar://localhost:6650/\nauthPlugin=\nauthParams=\n"
        "connectionTimeoutMs=2000\nlistenerName=file\nsecurity.protocol=SSL\n"
    )
    environ = {
        "ASYNCGROUP_PULSAR_CONNECTION_TIMEOUT_MS": "1000",
        "ASYNCGROUP_PULSAR_MAX_LOOKUP_REDIRECTS": "3",
        "ASYNCGROUP_PULSAR_JARS": "/jars",
        "ASYNCGROUP_CLIENT_ID": "another program's",
    }
    found = config_of("--config", str(file), *x("listenerName=x"), environ=environ)
    assert (found.connect_timeout, found.listener_name, found.max_lookup_redirects) == (2.0, "x", 3)
    assert config_of() == PulsarConfig()


def test_the_service_url_of_the_environment() -> None:
    parser = argparse.ArgumentParser()
    add_connection_options(parser, reads_pulsar=True)
    given = connection_options(parser.parse_args([]), {"ASYNCGROUP_BOOTSTRAP_SERVERS": URL})
    assert given.service_url == URL
    given = connection_options(parser.parse_args(["-b", "kafka:9092"]), {"ASYNCGROUP_BOOTSTRAP_SERVERS": URL})
    assert given.service_url is None


async def test_ways_to_authenticate(tmp_path: Path) -> None:
    token = config_of(*x("authPlugin=token", "authParams=token:secret"))
    assert token.authentication == TokenAuthentication("secret")
    basic = config_of(*x("authPlugin=basic", 'authParams={"userId": "ann", "password": "b"}'))
    assert basic.authentication == BasicAuthentication("ann", "b")
    file = tmp_path / "token"
    file.write_text("first\n")
    environ = {"ASYNCGROUP_PULSAR_AUTH_PLUGIN": "token", "ASYNCGROUP_PULSAR_AUTH_PARAMS": f"file:{file}"}
    found = config_of(environ=environ).authentication
    assert found is not None
    assert await found.credential() == b"first"
    file.write_text("second")
    assert await found.credential() == b"second"
    tls = config_of(*x(f"tlsTrustCertsFilePath={file}", "tlsHostnameVerificationEnable=false"), url=TLS_URL)
    assert tls.tls == Tls(ca_file=str(file), check_hostname=False)


@pytest.mark.parametrize(
    ("properties", "text"),
    [
        (["security.protocol=SSL"], "security.protocol='SSL' is not allowed: there is no such key (given by -X)"),
        (["operationTimeoutMS=1"], "did you mean operationTimeoutMs? (given by -X)"),
        (["operation_timeout=1"], "operation_timeout"),
        (["compressionTyp=LZ4"], "there is no such key; did you mean compressionType? (given by -X)"),
        (["authPlugin=token", "authParams=file:/no/file"], "'file:/no/file' is not allowed: a file that exists (given by -X)"),
        (["connectionTimeoutMs=soon"], "connectionTimeoutMs='soon' is not allowed: a whole number (given by -X)"),
        (["connectionTimeoutMs=-1"], "(given by -X)"),
        (["tlsTrustCertsFilePath=/no/such"], "a file that exists (given by -X)"),
        (["authParams=token:a"], "given together with authPluginClassName (given by -X)"),
        (["authPlugin=athenz"], "AuthenticationToken, AuthenticationBasic or AuthenticationTls"),
    ],
)  # fmt: skip
def test_a_wrong_property_is_one_error(properties: list[str], text: str) -> None:
    with pytest.raises(ConfigError) as error:
        config_of(*x(*properties))
    assert text in str(error.value)


@pytest.mark.parametrize(("plugin", "params"), [("token", "s3cret\x00"), ("basic", "s3cret"), ("", "s3cret")])
def test_secrets_are_not_in_errors(plugin: str, params: str) -> None:
    with pytest.raises(ConfigError) as error:
        config_of(*x(f"authPlugin={plugin}", f"authParams={params}"))
    assert "s3cret" not in str(error.value)


def test_handlers_have_the_same_time_to_end_as_on_kafka() -> None:
    """As the text at Ctrl-C says."""
    arguments = ["work", "m:f", "-b", URL, "--group", "g", "--topics", "t"]
    source = _source(_parser().parse_args(arguments), ())
    assert source.close_timeout == 30.0  # type: ignore[attr-defined]
    assert "(30 s)" in CLOSING


def given_by(*arguments: str) -> ConnectionOptions:
    parser = argparse.ArgumentParser()
    add_connection_options(parser, reads_pulsar=True)
    return connection_options(parser.parse_args(["-b", URL, *arguments]), {})


def test_properties_of_producers_and_consumers(tmp_path: Path) -> None:
    """Each command takes those of its client; a file may have both."""
    file = tmp_path / "both.conf"
    file.write_text(
        "sendTimeoutMs=5000\nreceiverQueueSize=7\noperationTimeoutMs=2000\ntopicName=x\npriorityLevel=1\n"
    )
    given = given_by("--config", str(file))
    assert pulsar_config(given, {}) == PulsarConfig(operation_timeout=2.0)
    assert pulsar_producer_config(given, {}) == (
        PulsarConfig(operation_timeout=2.0),
        PulsarProducerConfig(send_timeout=5.0),
    )
    environ = {"ASYNCGROUP_PULSAR_SUBSCRIPTION_TYPE": "Key_Shared"}
    assert pulsar_consumer_config(given, environ) == (
        PulsarConfig(operation_timeout=2.0),
        PulsarConsumerConfig(receiver_queue_size=7, priority_level=1),
        "key_shared",
    )
    assert pulsar_source_keys(given, {}) == (PulsarConfig(operation_timeout=2.0), {"priority_level": 1})
    work = given_by(*x("consumerName=c", "subscriptionMode=NonDurable", "batchIndexAckEnabled=false"))
    assert pulsar_source_keys(work, {})[1] == {"consumer_name": "c", "durable": False, "index_acks": False}


@pytest.mark.parametrize(
    ("read", "properties", "text"),
    [
        (pulsar_config, ["sendTimeoutMs=1"], "sendTimeoutMs='1' is not allowed: there is no such key (given by -X)"),
        (pulsar_producer_config, ["receiverQueueSize=1"], "there is no such key (given by -X)"),
        (pulsar_producer_config, ["topicName=x"], "left out: the command has options for it (given by -X)"),
        (pulsar_producer_config, ["sendTimeoutMs=x"], "sendTimeoutMs='x' is not allowed: a whole number (given by -X)"),
        (pulsar_consumer_config, ["sendTimeoutMs=1"], "there is no such key"),
        (pulsar_consumer_config, ["subscriptionName=x"], "left out: the command has options for it (given by -X)"),
        (pulsar_consumer_config, ["deadLetterPolicy=x"], "a work queue has dead_letter and retry (given by -X)"),
        (pulsar_source_keys, ["receiverQueueSize=5"], "left out: the queue decides it (given by -X)"),
        (pulsar_source_keys, ["subscriptionType=Shared"], "left out: the command has options for it (given by -X)"),
    ],
)  # fmt: skip
def test_a_property_of_the_other_client_is_one_error(
    read: Callable[..., object], properties: list[str], text: str
) -> None:
    with pytest.raises(ConfigError) as error:
        read(given_by(*x(*properties)), {})
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "kind", "start"),
    [
        ([], "exclusive", "latest"),
        (["--group", "g"], "failover", "latest"),
        (["--group", "g", *x("subscriptionType=Shared", "subscriptionInitialPosition=Earliest")], "shared", "earliest"),
        ([*x("subscriptionInitialPosition=Earliest", "startPaused=true"), "--from", "latest"], "exclusive", "latest"),
    ],
)  # fmt: skip
def test_the_consumer_of_consume(arguments: list[str], kind: str, start: str) -> None:
    options = _parser().parse_args([*CONSUME, *arguments])
    given = connection_options(options, {})
    found = PulsarReading.of(options, given, URL, options.group)
    assert (found.kind, found.start) == (kind, start)


def test_a_consumer_that_its_type_does_not_have(capsys: Output) -> None:
    readable = x("subscriptionType=Shared", "readCompacted=true")
    assert main([*CONSUME, "--group", "g", *readable]) == 1
    assert "read_compacted=True is not allowed: False unless the type is exclusive" in capsys.readouterr().err


def test_tls_needs_its_scheme(tmp_path: Path, capsys: Output) -> None:
    (tmp_path / "ca.pem").touch()
    assert main([*CONSUME, "-X", f"tlsTrustCertsFilePath={tmp_path / 'ca.pem'}"]) == 1
    assert "pulsar+ssl://" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([*CONSUME, "-p", "3"], "--partition is for Kafka: a partition of Pulsar is a topic, -t orders-partition-3"),
        ([*CONSUME, "-o", "17"], "--offset is for Kafka: messages of Pulsar have no offsets; use --from"),
        ([*CONSUME, "--group", "g", "--missing-topics", "wait"], "--missing-topics is for Kafka"),
        ([*CONSUME, "--metrics-host", "0.0.0.0"], "--metrics-host is for --metrics-port"),
        ([*CONSUME, "--group", "g", "--from", "1h"], "--from with a time is not for --group"),
        ([*PRODUCE, "-p", "0"], "--partition is for Kafka: a partition of Pulsar is a topic, -t orders-partition-0"),
        ([*PRODUCE, "-H", "a=1", "-H", "a=2"], "--header: a message of Pulsar has each property once"),
        ([*PRODUCE, "-H", "a=\udcff"], "--header: a property of Pulsar is UTF-8 text"),
        ([*WORK, "--group", "g", "--missing-topics", "wait"], "--missing-topics is for Kafka"),
        (WORK, "--group is required"),
        (["topics", "list", "-b", URL], "pulsar:// is for consume, dlq, produce and work"),
        (["demo", "-b", URL], "pulsar:// is for consume, dlq, produce and work"),
        ([*CONSUME[:2], "pulsar://h:x", *CONSUME[3:]], "pulsar://host[:port][,host…]"),
        ([*CONSUME[:4], "ftp://a/b/c"], "domain"),
    ],
)  # fmt: skip
def test_what_pulsar_does_not_have_is_a_usage_error(arguments: list[str], text: str, capsys: Output) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert text in err
    assert err.splitlines()[-1].startswith("asyncgroup ")


@pytest.mark.parametrize("url", ["pulsr://a:6650", "pulsar:/a:6650", "PULSAR://a", "http://a:8080"])
def test_a_misspelt_url_gets_both_forms(url: str, capsys: Output) -> None:
    with pytest.raises(SystemExit):
        main(["consume", "-b", url, "-t", "orders"])
    assert capsys.readouterr().err.endswith(
        f"bootstrap_servers={url!r} is not allowed: host:port of Kafka, several separated by commas, "
        "or pulsar://host:port or pulsar+ssl://host:port\n"
    )


def test_names_of_pulsars_topics_are_not_for_kafka(capsys: Output) -> None:
    for command in (["consume"], ["produce"]):
        assert main([*command, "-b", "127.0.0.1:1", "-t", "persistent://a/b/c"]) == 1
        assert "topic='persistent://a/b/c' is not allowed" in capsys.readouterr().err


def test_the_url_of_the_environment_is_refused_by_other_commands(
    capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASYNCGROUP_BOOTSTRAP_SERVERS", URL)
    run: Callable[[list[str]], int] = main
    assert run(["topics", "list"]) == 2
    assert "pulsar:// is for consume, dlq, produce and work" in capsys.readouterr().err
