"""Java's client on the embedded Pulsar, as producer and as consumer beside ours: tests that were written for Apache Pulsar."""

from __future__ import annotations

from types import ModuleType
from typing import Final

import pytest

from tests.pulsar.interop import (
    test_compacted_batches,
    test_copies,
    test_java_client,
    test_one_subscription,
    test_producer_and_java,
    test_reading_others,
    test_stored_ids,
)

pytestmark = [pytest.mark.real, pytest.mark.full, pytest.mark.usefixtures("pulsar_at_hand")]

MODULES: Final[tuple[ModuleType, ...]] = (
    test_compacted_batches,
    test_copies,
    test_java_client,
    test_one_subscription,
    test_producer_and_java,
    test_reading_others,
    test_stored_ids,
)

for _module in MODULES:
    globals().update(
        {name: test for name, test in vars(_module).items() if name.startswith("test_") and callable(test)}
    )
