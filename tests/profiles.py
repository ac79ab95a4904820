"""The profiles of the test suite: which cases a run has.

- `quick`, the default: a part of the cases.
- `full`, with `pytest --full` or `ASYNCGROUP_TESTS=full`: all but the long tests of `--soak`. `.ci/run` uses it.

- Of a parametrized test `quick` runs the first and the last case, of a story one of the two, unless its file or the test is
  named on the command line, or it is a test of the repository itself (directly in `tests/`) or of the guide. With
  `ASYNCGROUP_STORY_CASES=two` it runs both cases of a story: the rows of older brokers do (`tests/matrix.py`).
- Of the families that take minutes, `full` runs each fourth case or fewer, and `--soak` the others: also mutated and random
  bytes for every message in every version, and moves and restarts of rolling upgrades.
- Thinned are examples of Hypothesis, seeds, and sweeps: a cancellation at every iteration of the loop, mutations of the
  simulation, a story at every combination of moments and codes, the cases with which the benchmarks are tried.
- Marked `full`, so that `quick` leaves them out, are storms of members, the demonstration with Spark and with a whole year of
  flights, whose parts have tests of their own, stories that start a Kafka of their own or run on a real Kafka, too, groups
  that move between protocols beside Java's client, random restarts in rolling upgrades, a rolling downgrade, a cooperative
  member on a blocked loop, the rates of the brokers' benchmark, the types of messages in user code, the guide's test with
  Spark, the second signal where both end a program in the same way, what conftest.py does for this suite, and of the command
  line, Spark, other clients and a real Kafka those of the longest tests beside which a shorter one of the same kind runs.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, TypeVar

import pytest
from hypothesis import settings
from hypothesis.configuration import set_hypothesis_home_dir

from asyncgroup.java import user_cache

if TYPE_CHECKING:
    from _pytest.mark.structures import ParameterSet

__all__ = [
    "LEFT_OUT",
    "Profile",
    "StoryCases",
    "cases_to_run",
    "choose_profile",
    "current_profile",
    "examples",
    "long_family",
    "soak",
    "story_cases",
    "thinned",
]

Profile: TypeAlias = Literal["quick", "full"]

StoryCases: TypeAlias = Literal["one", "two"]

PROFILES: Final[tuple[Profile, ...]] = ("quick", "full")
STORY_CASES: Final[tuple[StoryCases, ...]] = ("one", "two")
VARIABLE: Final = "ASYNCGROUP_TESTS"
"""The environment variable, so that worker processes and decorators in test modules see the same profile."""

STORY_VARIABLE: Final = "ASYNCGROUP_STORY_CASES"
"""The environment variable with the number of cases that the quick profile runs of a story; `one` without it."""

QUICK_SHARE: Final = 16
"""The quick profile draws one of this many examples."""

FULL_SHARE: Final = 4
"""The full profile runs one of this many cases of a long family; `--soak` runs the others."""

WHOLE: Final = ("tests/guide/", "tests/group/test_public_members", "tests/broker/test_public_members")
"""Places whose tests run with all their cases, beside the files directly in `tests/`: their cases are names."""

ONE_CASE: Final = tuple(
    f"tests/{room}/" for room in ("cli", "demo", "interop", "pulsar/interop", "real", "scenario", "spark")
)
"""Directories whose tests are stories: each runs with one case, some with their first one, some with the last.

With `ASYNCGROUP_STORY_CASES=two` each runs with both, as other tests do.
"""

LEFT_OUT: Final = ("full", "soak")
"""Markers of tests that the quick profile leaves out."""

T = TypeVar("T")


def current_profile() -> Profile:
    """Return the profile of this run."""
    name = os.environ.get(VARIABLE) or "quick"
    for profile in PROFILES:
        if name == profile:
            return profile
    raise ValueError(f"{VARIABLE}={name} is not a profile: {' or '.join(PROFILES)}")


def story_cases() -> StoryCases:
    """Return how many cases the quick profile runs of a story."""
    name = os.environ.get(STORY_VARIABLE) or "one"
    for cases in STORY_CASES:
        if name == cases:
            return cases
    raise ValueError(f"{STORY_VARIABLE}={name} is not a number of cases: {' or '.join(STORY_CASES)}")


def choose_profile(profile: Profile) -> None:
    """Set the profile of this process and of those it starts; call it before test modules are imported."""
    os.environ[VARIABLE] = profile
    # not in the checkout, which may be read-only
    set_hypothesis_home_dir(user_cache() / "hypothesis")
    # no deadline: a busy machine must not fail a test
    settings.register_profile("quick", deadline=None, max_examples=examples(100))
    settings.register_profile("full", deadline=None)
    settings.load_profile(profile)


def examples(full: int) -> int:
    """Return how many Hypothesis examples to draw where the full profile draws `full`."""
    return full if current_profile() == "full" else max(full // QUICK_SHARE, min(full, 2))


def thinned(cases: Iterable[T], every: int = 12) -> list[T]:
    """Return the cases of a random family or a sweep: all in the full profile, in the quick one each `every`-th."""
    return list(cases)[:: 1 if current_profile() == "full" else every]


def cases_to_run(test: str, cases: Sequence[T]) -> list[T]:
    """Return which of its cases the quick profile runs of a test, by the test's node id."""
    if test.count("/") < 2 or test.startswith(WHOLE) or len(cases) < 2:
        return list(cases)
    if story_cases() == "two" or not test.startswith(ONE_CASE):
        return [cases[0], cases[-1]]
    return [cases[-1] if zlib.crc32(test.encode()) % 2 else cases[0]]


def soak(cases: Iterable[object]) -> list[ParameterSet]:
    """Return the cases as parameters that only `--soak` runs. The quick profile has one of them: it would collect them in vain."""
    chosen = list(cases)[: None if current_profile() == "full" else 1]
    return [pytest.param(case, marks=pytest.mark.soak) for case in chosen]


def long_family(cases: Iterable[object], every: int = FULL_SHARE, quick: int | None = None) -> list[object]:
    """Return the cases of a family that takes minutes: in the full profile each `every`-th, the others with `--soak`.

    The quick profile has the first one, or each `quick`-th. A tuple is a case of several parameters.
    """
    chosen = list(cases)
    if current_profile() == "quick":
        return chosen[::quick] if quick else chosen[:1]
    return [case if number % every == 0 else _with_soak(case) for number, case in enumerate(chosen)]


def _with_soak(case: object) -> ParameterSet:
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.soak)
