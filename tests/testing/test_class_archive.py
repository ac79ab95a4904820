"""The archive of a server's classes: its path, when it is used, and that its absence is no error."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from asyncgroup.java import Java
from asyncgroup.testing.apache_kafka import ApacheKafka
from asyncgroup.testing.java_server import class_archive
from asyncgroup.testing.java_server.class_archive import MAX_ARCHIVES, ClassArchive


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(class_archive, "user_cache", lambda: tmp_path / "cache")
    return tmp_path / "cache" / "class-archives"


@pytest.fixture
def jars(tmp_path: Path) -> Path:
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "kafka.jar").write_bytes(b"classes")
    return tmp_path / "jars"


def java(place: Path, *, with_archive: bool = True) -> Java:
    base = place / "jdk" / "lib" / "server" / "classes.jsa"
    base.parent.mkdir(parents=True, exist_ok=True)
    if with_archive:
        base.touch()
    return Java(home=place / "jdk", executable=place / "jdk" / "bin" / "java", version=17, origin="PATH")


def archive_file(place: Path, content: bytes = b"archive") -> Path:
    (place / "made").write_bytes(content)
    return place / "made"


def test_an_installed_archive_is_used(tmp_path: Path, jars: Path, cache: Path) -> None:
    archive = ClassArchive(java(tmp_path), jars)
    assert archive.options == []
    assert archive.can_be_created
    archive.install(archive_file(tmp_path))
    assert f"-XX:SharedArchiveFile={archive.path}" in archive.options
    assert not archive.can_be_created
    assert archive.path.read_bytes() == b"archive"
    assert list(cache.iterdir()) == [archive.path]


def test_the_last_install_wins(tmp_path: Path, jars: Path) -> None:
    archive = ClassArchive(java(tmp_path), jars)
    archive.install(archive_file(tmp_path, b"one"))
    with archive.path.open("rb") as mapped:
        ClassArchive(java(tmp_path), jars).install(archive_file(tmp_path, b"two"))
        assert mapped.read() == b"one", "a process that reads the old archive is not affected"
    assert archive.path.read_bytes() == b"two"


def test_each_server_java_and_set_of_jars_has_its_own_archive(tmp_path: Path, jars: Path) -> None:
    first = ClassArchive(java(tmp_path), jars)
    (tmp_path / "jdk" / "release").write_text('JAVA_VERSION="17.0.16"')
    second = ClassArchive(java(tmp_path), jars)
    (jars / "kafka.jar").write_bytes(b"newer classes")
    third = ClassArchive(java(tmp_path), jars)
    pulsar = ClassArchive(java(tmp_path), jars, "pulsar")
    assert len({each.path for each in (first, second, third, pulsar)}) == 4


def test_a_java_without_a_default_archive_cannot_create_one(tmp_path: Path, jars: Path) -> None:
    archive = ClassArchive(java(tmp_path, with_archive=False), jars)
    assert not archive.can_be_created
    assert archive.options == []


def test_old_archives_of_the_same_server_are_deleted(tmp_path: Path, jars: Path, cache: Path) -> None:
    cache.mkdir(parents=True)
    for age in range(MAX_ARCHIVES + 2):
        (cache / f"kafka-{age}.jsa").touch()
        os.utime(cache / f"kafka-{age}.jsa", (1_000 - age, 1_000 - age))
    (cache / "pulsar-0.jsa").touch()
    archive = ClassArchive(java(tmp_path), jars)
    archive.install(archive_file(tmp_path))
    assert {path.name for path in cache.iterdir()} == {
        archive.path.name,
        "pulsar-0.jsa",
        *(f"kafka-{age}.jsa" for age in range(MAX_ARCHIVES - 1)),
    }


@pytest.mark.parametrize("problem", ["no archive", "no jars", "no cache"])
def test_a_missing_archive_is_no_error(tmp_path: Path, jars: Path, problem: str) -> None:
    if problem == "no cache":
        (tmp_path / "cache").write_text("a file")
    archive = ClassArchive(java(tmp_path), tmp_path / "none" if problem == "no jars" else jars)
    archive.install(tmp_path / "none" if problem == "no archive" else archive_file(tmp_path))
    assert archive.options == [] or problem == "no jars"


@pytest.mark.soak
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="reads /proc of Linux")
@pytest.mark.usefixtures("kafka_at_hand")
def test_the_first_cluster_writes_the_archive_and_the_second_uses_it(cache: Path) -> None:
    def archives_in_use(kafka: ApacheKafka) -> list[str]:
        maps = Path(f"/proc/{kafka.pid(1)}/maps")
        return sorted(
            {line.split()[-1] for line in maps.read_text().splitlines() if "class-archives" in line}
        )

    first = ApacheKafka()
    with first:
        assert archives_in_use(first) == []
    if not cache.exists():
        pytest.skip("this Java has no default archive that another could extend")
    (archive,) = cache.iterdir()
    with first:
        assert archives_in_use(first) == [str(archive)]
    archive.write_bytes(b"no archive")
    with first:
        assert archives_in_use(first) == []
    archive.unlink()
    with ApacheKafka(2) as killed:
        killed.kill(1)
    assert not archive.exists()
