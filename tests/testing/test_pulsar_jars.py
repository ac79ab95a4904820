"""The download of Pulsar's jars, with a shell script instead of Java that does what Ivy would do."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from asyncgroup.errors import ConfigError
from asyncgroup.java import Java
from asyncgroup.testing.apache_pulsar import jars
from asyncgroup.testing.apache_pulsar.jars import (
    PULSAR_VERSION,
    Artifact,
    PulsarJarsUnavailable,
    pulsar_artifacts,
    pulsar_jars,
)
from asyncgroup.testing.java_server import jar_download as module
from asyncgroup.testing.java_server.jar_download import download_lock

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX only")

NAMES = [artifact.file_name for artifact in pulsar_artifacts()]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ASYNCGROUP_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ASYNCGROUP_PULSAR_JARS", raising=False)
    monkeypatch.setattr(module, "ivy_jar", lambda: Path("/no/ivy.jar"))
    return tmp_path / "cache" / "pulsar"


def java_that(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *names: str, script: str = "") -> None:
    """Use a shell script instead of Java, which stores these jars."""
    executable = tmp_path / "java"
    (tmp_path / "names").write_text("\n".join(names))
    find = 'while [ "$1" != -retrieve ]; do shift; done; lib="${2%/*}"; mkdir -p "$lib"'
    store = f'cd "$lib"; xargs touch {tmp_path}/lib-exists < {tmp_path}/names'
    executable.write_text(f"#!/bin/sh\necho call >> {tmp_path}/calls\n{find}\n{script}\n{store}\n")
    executable.chmod(0o700)
    java = Java(home=tmp_path, executable=executable, version=17, origin="PATH")
    monkeypatch.setattr(module, "require_java", lambda _: java)


def test_the_list_names_each_file_once() -> None:
    assert len(NAMES) == len(set(NAMES)) == 331
    assert f"pulsar-broker-{PULSAR_VERSION}.jar" in NAMES
    assert "netty-tcnative-boringssl-static-2.0.78.Final-linux-x86_64.jar" in NAMES


def test_jars_are_downloaded_once(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    java_that(monkeypatch, tmp_path, *NAMES)
    assert pulsar_jars() == pulsar_jars() == own_cache / PULSAR_VERSION
    assert (tmp_path / "calls").read_text() == "call\n"
    assert len(list((own_cache / PULSAR_VERSION).iterdir())) == 331
    assert capfd.readouterr().err == f"downloading Apache Pulsar {PULSAR_VERSION} (244 MB, once) …\n"


def test_a_download_that_lacks_a_file_is_not_taken_as_complete(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = NAMES[7]
    java_that(monkeypatch, tmp_path, *(name for name in NAMES if name != missing), script="echo well")
    with pytest.raises(PulsarJarsUnavailable, match=f"Ivy did not fetch {missing}: well"):
        pulsar_jars()
    assert [path.name for path in own_cache.iterdir()] == [f"{PULSAR_VERSION}.lock"]
    java_that(monkeypatch, tmp_path, *NAMES)
    (pulsar_jars() / missing).unlink()
    assert (pulsar_jars() / missing).is_file(), "a cache that was cleaned in part is downloaded again"


def test_without_the_network_the_reason_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java_that(monkeypatch, tmp_path, script='echo "Server access error at X"; exit 3')
    expected = (
        f"downloading Apache Pulsar {PULSAR_VERSION} with Ivy failed with exit code 3: Server access error"
    )
    with pytest.raises(PulsarJarsUnavailable, match=expected):
        pulsar_jars()


def test_a_download_has_a_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java_that(monkeypatch, tmp_path, script="echo connecting; exec sleep 60")
    with pytest.raises(PulsarJarsUnavailable, match=r"took longer than 0\.3 s: connecting"):
        pulsar_jars(limit=0.3)


def test_without_pyspark_the_error_names_the_alternative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java_that(monkeypatch, tmp_path)
    monkeypatch.setattr(module, "ivy_jar", lambda: None)
    with pytest.raises(
        PulsarJarsUnavailable, match=r"pip install pyspark`, or set ASYNCGROUP_PULSAR_JARS to"
    ):
        pulsar_jars()


def test_waiting_for_another_process_has_a_limit(own_cache: Path) -> None:
    own_cache.mkdir(parents=True)
    with (
        download_lock(own_cache / f"{PULSAR_VERSION}.lock", 5),
        pytest.raises(PulsarJarsUnavailable, match=r"another process has held the lock .* for 0\.2 s"),
    ):
        pulsar_jars(limit=0.2)


@pytest.mark.full
def test_one_process_downloads_and_the_others_wait(tmp_path: Path) -> None:
    code = f"""
import sys
from pathlib import Path
import pytest
from tests.testing.test_pulsar_jars import NAMES, java_that, module, pulsar_jars
patch = pytest.MonkeyPatch()
patch.setattr(module, "ivy_jar", lambda: Path("/no/ivy.jar"))
place = Path(sys.argv[1]); place.mkdir()
java_that(patch, place, *NAMES, script="sleep 0.3; echo call >> {tmp_path}/calls")
print(pulsar_jars())
"""
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / f"racer-{number}")],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environ,
        )
        for number in range(3)
    ]
    printed = {racer.communicate(timeout=60)[0] for racer in racers}
    assert printed == {f"{tmp_path}/cache/pulsar/{PULSAR_VERSION}\n"}
    assert (tmp_path / "calls").read_text() == "call\n"


def test_a_user_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASYNCGROUP_PULSAR_JARS", str(tmp_path))
    with pytest.raises(PulsarJarsUnavailable, match=rf"contains no \*pulsar-broker-{PULSAR_VERSION}\.jar"):
        pulsar_jars()
    (tmp_path / f"org.apache.pulsar-pulsar-broker-{PULSAR_VERSION}.jar").touch()
    assert pulsar_jars() == tmp_path


@pytest.mark.parametrize("version", ["", "4.2", "../4.2.4", "4.2.4\n", "9.9.9"])
def test_a_version_without_a_list_of_artifacts(version: str) -> None:
    with pytest.raises(ConfigError, match=rf"version=.* is not allowed: one of {PULSAR_VERSION}"):
        pulsar_jars(version)


def test_files_of_one_module_are_one_dependency() -> None:
    """Of several dependencies on one module Ivy fetches the file of one."""
    root = ET.fromstring(
        jars._ivy_file([Artifact("g", "a", "1"), Artifact("g", "b", "2"), Artifact("g", "a", "1", "tests")])
    )
    classifier = "{http://ant.apache.org/ivy/maven}classifier"
    found = [
        (each.get("name"), [part.get(classifier) for part in each.iter("artifact")])
        for each in root.iter("dependency")
    ]
    assert found == [("a", [None, "tests"]), ("b", [None])]
