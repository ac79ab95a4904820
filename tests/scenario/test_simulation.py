"""The simulation (`python -m tests.simulate`): no seed breaks an invariant, each tells the same story twice, and a client
that is broken on purpose is found out.

It makes its own loops, one a run: these tests are ordinary functions.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.simulate.__main__ import main
from tests.simulate.mutations import MUTATIONS, hunt
from tests.simulate.plan import ACTIONS, Action, Plan, plan_of
from tests.simulate.report import Summary, describe_failure
from tests.simulate.run import Outcome, run_plan, run_seed
from tests.simulate.shrink import shrink

ROOT = Path(__file__).parents[2]
CHUNK = 20
SOAK_CHUNK = 400

FOUND_BUGS = {
    271: "a static leader came back after its topic had grown: the plan in force was older, and nobody noticed",
    5159: "the same, after two restarts",
    8960: "the same, with another topic",
}
"""Seeds that have found something; they run with the others, and by themselves here."""


def check(seeds: Sequence[int]) -> Summary:
    """Run them all; fails with the shortest story of the first that breaks an invariant."""
    summary = Summary()
    for seed in seeds:
        outcome = run_seed(seed)
        summary.add(outcome)
        if outcome.violation is not None:
            plan, shortest = shrink(plan_of(seed), outcome, seconds=20.0)
            pytest.fail(describe_failure(shortest, plan.actions), pytrace=False)
    return summary


@pytest.mark.parametrize("first", range(0, 200, CHUNK))
def test_seeds(first: int):
    check(range(first, first + CHUNK))


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(200, 20_200, SOAK_CHUNK))
def test_many_seeds(first: int):
    summary = check(range(first, first + SOAK_CHUNK))
    assert summary.unused == []


@pytest.mark.parametrize("seed", FOUND_BUGS)
def test_seeds_that_found_bugs(seed: int):
    check([seed])


# --- a seed decides everything -------------------------------------------------------------------------------------


def digests(hash_seed: str, seeds: str) -> list[str]:
    """What each run was, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulate", "--seeds", seeds, "--json"],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return [json.loads(line)["digest"] for line in done.stdout.splitlines()]


def test_the_same_story_twice():
    """In other processes, with other hashes and addresses, and after other runs."""
    stories = digests("1", "5:12")
    assert digests("2", "5:12") == stories
    assert digests("0", "11:12") == stories[-1:]
    assert run_seed(8).digest == stories[3]
    assert len(set(stories)) == 7


def test_plans_are_drawn_of_every_kind_of_action():
    plans = [plan_of(seed) for seed in range(200)]
    drawn = {action.kind for plan in plans for action in plan.actions}
    assert drawn == set(ACTIONS)
    assert sum(plan.is_peaceful for plan in plans) > 20


# --- what is broken is found ---------------------------------------------------------------------------------------

QUICKLY_FOUND = ("mark before handling", "no commit at the end", "start one record later", "never leaves")


@pytest.mark.parametrize("mutation", QUICKLY_FOUND)
def test_a_broken_client_is_found_out(mutation: str):
    assert hunt(mutation, range(40)) is not None


@pytest.mark.soak
@pytest.mark.parametrize("mutation", [name for name in MUTATIONS if name not in QUICKLY_FOUND])
def test_every_mutation_is_found(mutation: str):
    assert hunt(mutation, range(400)) is not None


def test_the_shortest_story_of_a_failure():
    with MUTATIONS["no commit at the end"]():
        failed = hunt("no commit at the end", range(40))
        assert failed is not None
        plan, shortest = shrink(plan_of(failed.seed), failed, seconds=10.0)
        assert shortest.violation is not None
        text = describe_failure(shortest, plan.actions)
    assert failed.violation is not None
    assert shortest.violation.name == failed.violation.name == "an orderly end commits what is marked"
    assert len(plan.actions) < len(plan_of(failed.seed).actions)
    assert f"seed {failed.seed} breaks: an orderly end commits what is marked" in text


def test_shrinking_leaves_out_all_that_is_not_needed():
    plan = plan_of(3)
    culprits = {plan.actions[2], plan.actions[-1]}

    def run(tried: Plan) -> Outcome:
        outcome = Outcome(3, None, empty.counts, 0.0, 0.0, "", [], [])
        outcome.violation = failed.violation if culprits <= set(tried.actions) else None
        return outcome

    empty = run_plan(plan.without(plan.actions))
    with MUTATIONS["never leaves"]():
        failed = run_plan(plan)
    assert failed.violation is not None
    smallest, _ = shrink(plan, failed, run=run)
    assert set(smallest.actions) == culprits


# --- the command ---------------------------------------------------------------------------------------------------


def test_a_run_tells_its_story(capsys: pytest.CaptureFixture[str]):
    assert main(["--seed", "17", "--story"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[:-1] == run_seed(17).story
    assert "all well" in told[-1]
    assert any("plan         join(m1)" in line for line in told)


def test_the_table(capsys: pytest.CaptureFixture[str]):
    assert main(["--seeds", "0:2", "--jobs", "2"]) == 0
    told = capsys.readouterr().out
    assert "2 runs" in told
    assert "action join" in told


def test_a_failing_command(capsys: pytest.CaptureFixture[str]):
    with MUTATIONS["commit one record more"]():
        assert main(["--seed", "0"]) == 1
        told = capsys.readouterr().out
        assert main(["--seed", "0", "--story"]) == 1
    assert "seed 0 breaks: commits never pass unhandled records" in told
    assert "BROKEN commits never pass unhandled records: seeds 0" in told


def test_an_action_says_what_it_is():
    assert str(Action(1.5, "mute", ("m1", 4.0))) == "mute(m1, 4.0)"
