"""Fixtures of the tests of the Pulsar client on a real Pulsar."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.pulsar.real.secured import Secured, secured_pulsar


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory, pulsar_at_hand: None) -> Iterator[Secured]:
    """A Pulsar that requires tokens, with the topic `orders` of 3 partitions."""
    with secured_pulsar(tmp_path_factory.mktemp("certificates")) as secured:
        yield secured
