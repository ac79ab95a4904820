"""What tests with other people's clients share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interop.java_tools import JavaTools


@pytest.fixture(scope="session")
def java_tools(kafka_at_hand: None) -> Iterator[JavaTools]:
    """Kafka's own command-line tools, in one JVM for all tests."""
    with JavaTools() as tools:
        yield tools
