"""The sources of a command's properties (flags, -X, --config, environment), and that errors show no secrets."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from asyncgroup.cli.connection_options import (
    ConnectionOptions,
    add_connection_options,
    connection_options,
    read_properties,
)
from asyncgroup.config import ConsumerConfig, ProducerConfig
from asyncgroup.errors import ConfigError
from asyncgroup.security import Plain, Scram, Security, Tls


def parsed(*arguments: str, environ: dict[str, str] | None = None, **defaults: str) -> ConnectionOptions:
    parser = argparse.ArgumentParser()
    add_connection_options(parser)
    return connection_options(parser.parse_args(arguments), environ or {}, **defaults)


def file_of(folder: Path, text: str) -> str:
    file = folder / "client.properties"
    file.write_text(text, encoding="utf-8")
    return str(file)


def test_flag_x_file_and_environment_in_this_order(tmp_path: Path) -> None:
    environ = {
        "ASYNCGROUP_BOOTSTRAP_SERVERS": "environment:1",
        "ASYNCGROUP_CLIENT_ID": "environment",
        "ASYNCGROUP_REQUEST_TIMEOUT_MS": "1000",
        "ASYNCGROUP_RETRY_BACKOFF_MS": "1",
    }
    file = file_of(tmp_path, "bootstrap.servers=file:1\nclient.id=file\nrequest.timeout.ms=2000\n")
    x = ("-X", "metadata.broker.list=x:1", "-X", "client.id=x", "-X", "client.id=last")
    for arguments, servers, client_id, timeout in (
        ((), "environment:1", "environment", 1.0),
        (("--config", file), "file:1", "file", 2.0),
        (("--config", file, *x), "x:1", "last", 2.0),
        (("--config", file, *x, "-b", "flag:1"), "flag:1", "last", 2.0),
    ):
        options = parsed(*arguments, environ=environ, client_id="default")
        config = options.config(ConsumerConfig)
        assert (options.servers, config.client_id, config.request_timeout) == (servers, client_id, timeout)
        assert config.retry_backoff == 0.001
    assert parsed(client_id="default").config(ConsumerConfig).client_id == "default"
    assert parsed().servers is None
    assert parsed(environ={**environ, "ASYNCGROUP_CONFIG": file}).servers == "file:1"


def test_tls_and_sasl_by_javas_and_librdkafkas_names(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_text("")
    file = file_of(
        tmp_path,
        f"security.protocol=SASL_SSL\nssl.truststore.type=PEM\nssl.truststore.location={ca}\n"
        "sasl.mechanism=SCRAM-SHA-256\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\\n"
        '    username="alice" password="s3cret";\n',
    )
    options = parsed("--config", file).config(ProducerConfig)
    tls = Tls(ca_file=str(ca))
    assert options.security == Security(tls=tls, sasl=Scram("alice", "s3cret", "SCRAM-SHA-256"))
    environ = {
        "ASYNCGROUP_SECURITY_PROTOCOL": "sasl_plaintext",
        "ASYNCGROUP_SASL_MECHANISMS": "SCRAM-SHA-512",
        "ASYNCGROUP_SASL_USERNAME": "alice",
        "ASYNCGROUP_SASL_PASSWORD": "s3cret",
    }
    options = parsed("-X", "sasl.mechanism=PLAIN", environ=environ).config(ProducerConfig)
    assert options.security == Security(sasl=Plain("alice", "s3cret")), "the two names are one property"


def test_properties_of_other_clients_are_ignored_in_a_file(tmp_path: Path) -> None:
    """A producer's property is ignored by a consumer in a file; in -X it is an error."""
    file = file_of(tmp_path, "linger.ms=7\nsession.timeout.ms=7000\ngroup.id=readers\n")
    options = parsed("--config", file)
    assert options.config(ConsumerConfig).session_timeout == 7.0
    assert options.config(ProducerConfig).linger == 0.007
    assert options.group_id == "readers"
    with pytest.raises(
        ConfigError, match=r"only in a ProducerConfig; this is a ConsumerConfig \(given by -X\)"
    ):
        parsed("-X", "linger.ms=7").config(ConsumerConfig)


def test_keys_of_the_command_override_properties() -> None:
    options = parsed("-X", "auto.offset.reset=latest")
    assert options.config(ConsumerConfig).auto_offset_reset == "latest"
    assert options.config(ConsumerConfig, auto_offset_reset="earliest").auto_offset_reset == "earliest"


@pytest.mark.parametrize(
    ("arguments", "environ", "message"),
    [
        (["-X", "sesion.timeout.ms=1"], {}, r"did you mean session\.timeout\.ms\? \(given by -X\)"),
        (["-X", "session.timeout.ms=soon"], {}, r"a number of milliseconds \(given by -X\)"),
        ([], {"ASYNCGROUP_RETRY_BACKOFF_MS": "x"}, r"given by ASYNCGROUP_RETRY_BACKOFF_MS\)"),
        (["--config", "/nowhere/c.properties"], {}, r"--config='/nowhere/c.properties' .*No such file"),
    ],
)
def test_errors_name_the_source_of_the_value(
    arguments: list[str], environ: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        parsed(*arguments, environ=environ).config(ConsumerConfig)


@pytest.mark.parametrize(
    "arguments",
    [
        ["-X", "sasl.password=s3cret"],
        ["-X", "sasl.pasword=s3cret"],
        ["-X", "security.protocol=SASL_SSL", "-X", "sasl.mechanism=PLAIN", "-X", "sasl.jaas.config=s3cret"],
        ["-X", "ssl.keystore.password=s3cret"],
    ],
)
def test_errors_show_no_secret(arguments: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parsed(*arguments).config(ConsumerConfig)
    assert "s3cret" not in f"{caught.value} {caught.value!r}"


def test_an_invalid_x_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed("-X", "s3cret")
    err = capsys.readouterr().err
    assert "argument -X: expected NAME=VALUE" in err
    assert "s3cret" not in err


def test_a_warning_for_an_unknown_variable(caplog: pytest.LogCaptureFixture) -> None:
    parsed(environ={"ASYNCGROUP_SASL_PASWORD": "s3cret", "ASYNCGROUP_CACHE": "/c", "ASYNCGROUP_X": "1"})
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    message = record.getMessage()
    assert (
        message
        == "unknown environment variable ASYNCGROUP_SASL_PASWORD: did you mean ASYNCGROUP_SASL_PASSWORD?"
    )


def test_the_demo_ignores_the_environments_bootstrap_servers() -> None:
    environ = {"ASYNCGROUP_BOOTSTRAP_SERVERS": "production:9092", "ASYNCGROUP_SECURITY_PROTOCOL": "SSL"}
    assert parsed(environ=environ).without_environment_servers().servers is None
    options = parsed("-b", "test:9092", environ=environ).without_environment_servers()
    assert options.servers == "test:9092"
    assert options.config(ConsumerConfig).security == Security(tls=Tls())


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a=1\nb = 2\nc: 3\nd 4\n", {"a": "1", "b": "2", "c": "3", "d": "4"}),
        ("# comment\n! another\n\n  \na=1 # no comment\n", {"a": "1 # no comment"}),
        ("a=one \\\n   two\\\n\tthree\nb=4", {"a": "one twothree", "b": "4"}),
        ("a=x\\\\\nb=2", {"a": "x\\", "b": "2"}),
        ("a=1\\\n# two\n", {"a": "1# two"}),
        (r"a\=b\ c=\t\u00e9\q\"", {"a=b c": "\té" + 'q"'}),
        ("a\nb=\nc==d\n", {"a": "", "b": "", "c": "=d"}),
        ("a=1\r\na=2\rb=3", {"a": "2", "b": "3"}),
        ("\ufeffa=1", {"a": "1"}),
        ("password=naïve", {"password": "naïve"}),
    ],
)  # fmt: skip
def test_files_are_parsed_as_by_java(tmp_path: Path, text: str, found: dict[str, str]) -> None:
    file = tmp_path / "f"
    file.write_bytes(text.encode())
    assert read_properties(file) == found


def test_a_file_that_is_not_utf8(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"a=\xff")
    with pytest.raises(ConfigError, match="a UTF-8 text file: byte 2 is not"):
        read_properties(file)


@given(st.text(st.characters(codec="utf-8"), max_size=80))
def test_any_text_can_be_parsed(tmp_path_factory: Any, text: str) -> None:
    file = tmp_path_factory.getbasetemp() / "any.properties"
    file.write_bytes(text.encode())
    read_properties(file)
