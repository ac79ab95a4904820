"""Java programs of the tests that use Pulsar's own client."""

from __future__ import annotations

from pathlib import Path

from asyncgroup.java import require_java
from asyncgroup.testing.apache_pulsar import pulsar_jars
from asyncgroup.testing.java_server.class_archive import ClassArchive
from tests.java_programs import java_command

__all__ = ["pulsar_java_command"]


def pulsar_java_command(source: Path) -> list[str]:
    """Return the command that runs the main class of this file with Pulsar's jars, without arguments.

    Compile the file first if needed, for seconds. The test needs the fixture `pulsar_at_hand` or another one of Pulsar.
    Only what the program prints is on its standard output: logs are errors, on standard error.
    """
    jars = pulsar_jars()
    archive = ClassArchive(require_java("run Pulsar's client"), jars, "pulsar")
    options = [*archive.options, "-Xmx256m", "-Dslf4j.provider=org.slf4j.simple.SimpleServiceProvider"]
    return java_command(source, f"{jars}/*", options=options)
