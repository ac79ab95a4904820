"""The embedded Pulsar does what a real one does: tests of the client's transactions that were written for Apache Pulsar."""

from __future__ import annotations

from typing import Final

import pytest

from tests.pulsar.transactions import test_apache_pulsar, test_consume_transform_produce

pytestmark = [pytest.mark.real, pytest.mark.full]

TESTS: Final = [
    test_consume_transform_produce.test_on_a_real_pulsar,
    *(test for name, test in vars(test_apache_pulsar).items() if name.startswith("test_")),
]
for _test in TESTS:
    globals()[_test.__name__] = _test


def test_there_are_tests() -> None:
    assert len(TESTS) > 7
