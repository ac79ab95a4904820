"""The random choices of Pulsar clients in a test follow from the test's name: what fails in one run fails in the next."""

from __future__ import annotations

import random
import sys
from itertools import count
from types import SimpleNamespace

__all__ = ["seed_pulsar_clients"]


def seed_pulsar_clients(seed: str) -> None:
    """Seed the random choices of the clients that are opened from now on, which each makes with a generator of its own."""
    core = sys.modules.get("asyncgroup.pulsar.core")  # tests of Kafka do not import it
    if core is not None:
        numbers = count()

        def new() -> random.Random:
            return random.Random(f"{seed} client {next(numbers)}")

        core.random = SimpleNamespace(Random=new)  # type: ignore[attr-defined]
