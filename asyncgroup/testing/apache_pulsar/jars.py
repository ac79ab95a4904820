"""The jars of Apache Pulsar, downloaded once per user (`jar_download`): 331 files, 244 MB, one to three minutes.

Apache Ivy does not resolve Pulsar's dependencies as Maven does: it ignores imported lists of versions, and skips jars
with foreign packagings. Therefore `artifacts-<version>.txt` lists all artifacts that Maven chooses, one per line
(`group:name:version[:classifier]`), and Ivy fetches exactly these.

The environment variable `ASYNCGROUP_PULSAR_JARS` names a directory that contains Pulsar's jars already (such as `lib/` of
a Pulsar distribution). For networks with their own proxy or repository see `java_server.ivy`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Final, NamedTuple

from asyncgroup.errors import AsyncGroupError, ConfigError
from asyncgroup.java import user_cache
from asyncgroup.testing.java_server.jar_download import JarDownload

__all__ = ["PULSAR_VERSION", "PulsarJarsUnavailable", "pulsar_artifacts", "pulsar_jars"]

PULSAR_VERSION: Final = "4.2.4"
"""The release that is used by default."""


# Ivy would read the description of each artifact and of its parents, for three times as long.
_IVY_SETTINGS: Final = """\
<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true" usepoms="false"/></resolvers>
</ivysettings>
"""


class PulsarJarsUnavailable(AsyncGroupError):
    """Pulsar's jars are not in the cache and could not be downloaded; the message gives the reason."""


class Artifact(NamedTuple):
    """A file of Java's public repository."""

    group: str
    name: str
    version: str
    classifier: str = ""

    @property
    def file_name(self) -> str:
        """The name of the jar in the directory."""
        return f"{self.name}-{self.version}{'-' * bool(self.classifier)}{self.classifier}.jar"


def pulsar_artifacts(version: str = PULSAR_VERSION) -> list[Artifact]:
    """Return the artifacts of a release, in the order of the list. Raises ConfigError if there is no list for it."""
    lists = {path.stem.partition("-")[2]: path for path in Path(__file__).parent.glob("artifacts-*.txt")}
    if version not in lists:
        raise ConfigError("version", version, f"one of {', '.join(sorted(lists))}")
    return [Artifact(*line.split(":")) for line in lists[version].read_text(encoding="ascii").split()]


def pulsar_jars(version: str = PULSAR_VERSION, *, limit: float = 900.0) -> Path:
    """Return the directory with the jars of this Pulsar version, which are downloaded once; progress goes to stderr.

    If several processes call it at the same time, one downloads and the others wait. `limit` in seconds applies to the
    wait and to the download each. Raises `PulsarJarsUnavailable`, and `JavaNotFound` if there is no Java to run Ivy.
    """
    artifacts = pulsar_artifacts(version)
    if given := os.environ.get("ASYNCGROUP_PULSAR_JARS"):
        return _own_directory(Path(given), version)
    names = [artifact.file_name for artifact in artifacts]
    download = JarDownload(
        name=f"Apache Pulsar {version}",
        size="244 MB",
        ivy_file=_ivy_file(artifacts),
        missing=lambda directory: [name for name in names if not (directory / name).is_file()],
        error=PulsarJarsUnavailable,
        ivy_settings=_IVY_SETTINGS,
        alternative=", or set ASYNCGROUP_PULSAR_JARS to a directory with Pulsar's jars",
    )
    return download.into(user_cache() / "pulsar" / version, limit)


def _own_directory(directory: Path, version: str) -> Path:
    # in Pulsar's distribution the names begin with the group
    if not any(directory.glob(f"*pulsar-broker-{version}.jar")):
        raise PulsarJarsUnavailable(
            f"ASYNCGROUP_PULSAR_JARS={directory} contains no *pulsar-broker-{version}.jar"
        )
    return directory.absolute()


def _ivy_file(artifacts: Iterable[Artifact]) -> str:
    """Return Ivy's list. Of a module with several files Ivy would fetch only one if each were a dependency."""
    wanted = []
    for (group, name, version), files in groupby(sorted(artifacts), key=lambda artifact: artifact[:3]):
        parts = "".join(
            f'<artifact name="{name}" type="jar" ext="jar"{_classifier(file)}/>' for file in files
        )
        wanted.append(
            f'<dependency org="{group}" name="{name}" rev="{version}" conf="default->master(default)" transitive="false">'
            f"{parts}</dependency>"
        )
    module = '<info organisation="asyncgroup" module="apache-pulsar"/>'
    namespace = 'xmlns:m="http://ant.apache.org/ivy/maven"'
    return f'<ivy-module version="2.0" {namespace}>{module}<dependencies>{"".join(wanted)}</dependencies></ivy-module>'


def _classifier(artifact: Artifact) -> str:
    return f' m:classifier="{artifact.classifier}"' if artifact.classifier else ""
