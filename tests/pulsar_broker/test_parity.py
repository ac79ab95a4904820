"""The embedded Pulsar does what a real one does: tests of consumers and producers that were written for Apache Pulsar."""

from __future__ import annotations

from typing import Final

import pytest

from tests.pulsar.consumer import test_apache_pulsar as consumers
from tests.pulsar.interop import test_producer_and_cpp as producers
from tests.pulsar.real import (
    test_compacted_table_view as compacted,
    test_pulsar_table_view as table_views,
    test_topic_lists as topic_lists,
)

pytestmark = [pytest.mark.real, pytest.mark.full]

MODULES: Final = (consumers, producers, topic_lists, table_views, compacted)

for _module in MODULES:
    globals().update({name: test for name, test in vars(_module).items() if name.startswith("test_")})
cpp, deduplicating = producers.cpp, producers.deduplicating  # fixtures of its tests


def test_there_are_tests() -> None:
    assert sum(name.startswith("test_") for module in MODULES for name in vars(module)) > 20
