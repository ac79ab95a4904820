"""Kafka's jars, where a test run has them already: nothing is fetched for a comparison."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from asyncgroup.java import user_cache
from asyncgroup.testing.kafka_jars import KAFKA_VERSION


def kafka_jar(artifact: str) -> Path:
    """The jar of the release that our tables come from; skips the test if it is neither given nor cached."""
    given = os.environ.get("ASYNCGROUP_KAFKA_JARS")
    directory = Path(given) if given else user_cache() / "kafka" / KAFKA_VERSION
    jar = directory / f"{artifact}-{KAFKA_VERSION}.jar"
    if not jar.is_file():
        pytest.skip(
            f"{jar.name} is neither in Kafka's cache nor in ASYNCGROUP_KAFKA_JARS (the tests in tests/real fetch it)"
        )
    return jar
