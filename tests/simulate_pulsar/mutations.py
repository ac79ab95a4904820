"""Mutations: bugs introduced into brokers and clients on purpose, which the simulation must detect.

`python -m tests.simulate_pulsar --mutation all` finds the first seed that detects each of them.
"""

from __future__ import annotations
import __future__

import inspect
import sys
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest.mock import patch

from tests.simulate_pulsar.mutants import MUTANTS, Mutant
from tests.simulate_pulsar.run import run_seed
from tests.simulation.run import Outcome, first_violation

__all__ = ["MUTATIONS", "find_mutation", "mutated"]

MUTATIONS: Final = {mutant.name: mutant for mutant in MUTANTS}
"""By name."""


@contextmanager
def mutated(mutant: Mutant) -> Iterator[None]:
    """Replace the text of one function for the duration of a block."""
    owner: Any = mutant.owner
    function = inspect.getattr_static(owner, mutant.function)
    is_property = isinstance(function, property)
    if is_property:
        function = function.fget
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(mutant.old) == 1, f"{mutant.name}: the text is there {source.count(mutant.old)} times"
    source = source.replace(mutant.old, mutant.new)
    names = vars(sys.modules[function.__module__])
    found: dict[str, Any] = {}
    flags = __future__.annotations.compiler_flag
    exec(compile(source, f"<{mutant.name}>", "exec", flags), names, found)
    made = found[mutant.function]  # a decorated property is one again
    with patch.object(owner, mutant.function, made):
        yield


def find_mutation(name: str, seeds: Iterable[int]) -> Outcome | None:
    """Return the first run that detects a mutation; None if none does."""
    with mutated(MUTATIONS[name]):
        return first_violation(run_seed, seeds)
