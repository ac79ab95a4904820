"""The simulation (`python -m tests.simulate`): no seed breaks an invariant, each seed is reproducible, and a client
with a bug introduced on purpose is detected.

The simulation creates an event loop for each run, so these tests are plain functions.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from asyncgroup.workqueue import Mode
from tests.profiles import current_profile, long_family, thinned
from tests.simulate.__main__ import SIMULATION
from tests.simulate.disk import tear
from tests.simulate.mutants_of_mixed import MIXED_MUTANTS
from tests.simulate.mutants_of_protocols import CONSUMER_MUTANTS, COOPERATIVE_MUTANTS
from tests.simulate.mutants_of_queues import QUEUE_MUTANTS
from tests.simulate.mutations import MUTATIONS, find_mutation
from tests.simulate.plan import Plan
from tests.simulate.planner import ACTIONS
from tests.simulate.protocols import REQUESTS_OF_CONSUMERS
from tests.simulate.report import describe_failure
from tests.simulate.run import run_plan, run_seed
from tests.simulate.seeds import CONSUMERS, COOPERATIVE, MIXED, QUEUES, plan_of
from tests.simulation.action import Action
from tests.simulation.run import Outcome
from tests.simulation.shrink import shrink

ROOT = Path(__file__).parents[3]
CHUNK = 10 if current_profile() == "full" else 2
SOAK_CHUNK = 1000

PROTOCOLS = (0, COOPERATIVE, CONSUMERS, MIXED, QUEUES)
"""The first seed of each group protocol, of groups with members of both, and of work queues."""

FOUND_BUGS = {
    183: "bytes that were on their way when their connection ended counted as a timer that is left: a bug of the simulation",
    496: "a static leader came back after its topic had grown: the old assignment in use lacked partitions, and was not replaced",
    8265: "a record that its producer had timed out arrived while its readers were leaving: a bug of the simulation",
    14963: "an abandoned commit arrived after a newer one, and the session ended without repeating the newer one",
    18335: "the same, and others",
    20125: "a program was stopped during a commit, which arrived after those of its successor: no bug",
    COOPERATIVE + 2184: "a member gave up partitions whose claims had not started, and did not join again",
    CONSUMERS
    + 696: "the responses to two heartbeats with new epochs were lost, and the member was fenced: no bug",
    CONSUMERS
    + 1088: "a session was lost while it had left a handler behind that ignores its cancellation: no bug",
    CONSUMERS + 1: "a member that got no response with its group's session timeout did not ask again",
    CONSUMERS
    + 1011: "a session that ended committed under an older epoch, which coordinators before Kafka 4.3 refuse",
    CONSUMERS + 1374: "a heartbeat that had timed out arrived after newer ones, and the member was fenced",
    CONSUMERS + 1407: "the same",
    CONSUMERS
    + 3668: "a heartbeat was sent before the session timeout was known, and waited for longer than that",
    MIXED + 13: "a member was refused while a classic group had its first rebalance, and gave up",
    MIXED
    + 931: "such members tried again so often that the classic ones were never there when the rebalance would end",
    MIXED + 222: "a member that its group had removed gave up, as the group had become a classic one",
    MIXED + 206: "a group changed its assignor between a JoinGroup and its SyncGroup, and the member gave up",
    MIXED
    + 249: "a group was upgraded in a rebalance, and forgot who had which partitions: no bug, as in Kafka",
    MIXED + 253: "the same by a static member, and no rebalance followed: no bug, as in Kafka",
    MIXED + 2056: "a group was downgraded before all had their partitions: no bug, as in Kafka",
    MIXED
    + 18: "a group with classic members only may not be downgraded, and stood still: no bug, as in Kafka",
    QUEUES
    + 3779: "a static member was restarted between a revocation and its next join, and the partition had no owner",
    QUEUES
    + 9286: "a claim began below the base of its window, and its commit stayed there until the next acknowledgement",
}
"""Seeds that reproduce earlier bugs with the current plans; `test_found_by_simulation` has separate tests for the bugs."""


def free_processors() -> int:
    """Return how many processes a test may start: the workers of pytest-xdist share the processors."""
    return max((os.cpu_count() or 1) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")), 1)


check, main = SIMULATION.check, SIMULATION.main


def chunks(start: int, stop: int, size: int) -> list[int]:
    """Return the first seed of each chunk, for each group protocol."""
    return [protocol + first for protocol in PROTOCOLS for first in range(start, stop, size)]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", chunks(0, CHUNK, CHUNK))
def test_seeds(first: int):
    check(range(first, first + CHUNK), jobs=free_processors())


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", chunks(0, 10_000, SOAK_CHUNK))
def test_many_seeds(first: int):
    """50,000 seeds on all cores; `python -m tests.simulate --seeds 0:10000 --jobs 2` also shows the progress."""
    summary = check(range(first, first + SOAK_CHUNK), jobs=os.cpu_count() or 1)
    assert summary.runs == SOAK_CHUNK
    assert summary.unused == []


@pytest.mark.parametrize("seed", thinned(FOUND_BUGS, every=5))
def test_seeds_that_found_bugs(seed: int):
    check([seed])


# --- runs are reproducible --- -------------------------------------------------------------------------------------


def digests(hash_seed: str, seeds: str) -> list[str]:
    """Return a digest of each run, computed in a separate process."""
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


@pytest.mark.full
def test_runs_are_reproducible():
    """In other processes, with other hash seeds and memory addresses, and after other runs."""
    is_full = current_profile() == "full"
    seeds = range(17 if is_full else 18, 20)
    some = f"{seeds.start}:{seeds.stop}"
    consumers = f"{CONSUMERS + 14}:{CONSUMERS + 16}"
    mixed = f"{MIXED + 14}:{MIXED + 18}"
    queues = f"{QUEUES + 14}:{QUEUES + 18}"
    assert any(action.kind == "power_cut" for action in plan_of(19).actions)  # with files and file names
    with ThreadPoolExecutor(free_processors()) as pool:
        stories, last, *more = pool.map(
            digests, ("1", "0", "2")[: 3 if is_full else 2], (some, "19:20", some)
        )
        further = (consumers, mixed, queues) if is_full else ()
        first = list(pool.map(digests, "1" * len(further), further))
        second = list(pool.map(digests, "0" * len(further), further))
    assert first == second
    assert more == [stories] * is_full
    assert last == stories[-1:]
    assert run_seed(seeds[-4:][0]).digest == stories[-4:][0]
    assert len(set(stories)) == len(seeds)


def test_plans_are_drawn_of_every_kind_of_action():
    plans = [plan_of(seed) for seed in range(200)]
    drawn = {action.kind for plan in plans for action in plan.actions}
    assert drawn == set(ACTIONS)
    assert sum(plan.is_orderly for plan in plans) > 20


def test_plans_of_consumers_have_the_same_actions_with_their_own_requests():
    plans = [(plan_of(seed), plan_of(CONSUMERS + seed)) for seed in range(200)]
    faults = set()
    for plan, other in plans:
        assert all(spec.is_consumer for spec in other.members.values())
        assert [(one.at, one.kind) for one in plan.actions] == [(one.at, one.kind) for one in other.actions]
        faults |= {action.args[0] for action in other.actions if action.kind == "fault"}
    assert faults.isdisjoint(REQUESTS_OF_CONSUMERS)
    assert faults >= set(REQUESTS_OF_CONSUMERS.values())
    assert {spec.assignors for _, other in plans for spec in other.members.values()} == {
        (),
        ("range",),
        ("uniform",),
    }
    assert {other.setting.has_strict_epochs for _, other in plans} == {False, True}


def test_plans_of_groups_with_both_protocols():
    plans = [plan_of(MIXED + seed) for seed in range(300)]
    mixed = [plan for plan in plans if plan.others]
    assert {plan.setting.migration_policy for plan in mixed} == {
        "bidirectional",
        "upgrade",
        "downgrade",
        "disabled",
    }
    for plan in mixed:
        assert plan.others.keys() == plan.members.keys()
        pairs = [(spec, plan.others[name]) for name, spec in plan.members.items()]
        assert all(one.is_consumer != other.is_consumer for one, other in pairs)
        assert not any(spec.matches_at_broker for pair in pairs for spec in pair)
        assert not plan.is_orderly
    assert {spec.is_consumer for plan in mixed for spec in plan.members.values()} == {False, True}
    classic = [spec for plan in mixed for spec in plan.members.values() if not spec.is_consumer]
    assert {spec.is_cooperative for spec in classic} == {False, True}
    assert {bool(spec.instance_id) for spec in classic} == {False, True}
    assert {bool(plan.setting.racks) for plan in mixed} == {False, True}
    with_patterns = [plan for plan in plans if not plan.others]
    assert all(spec.is_consumer for plan in with_patterns for spec in plan.members.values())
    assert any(spec.matches_at_broker for plan in with_patterns for spec in plan.members.values())
    kinds = {action.kind for plan in mixed for action in plan.actions}
    assert kinds == {*ACTIONS, "change_protocol"}


def test_plans_of_work_queues():
    plans = [plan_of(QUEUES + seed) for seed in range(300)]
    settings = [plan.queues for plan in plans if plan.queues is not None]
    assert len(settings) == 300
    assert {setting.mode for setting in settings} == set(Mode)
    protocols = {"eager": 0, "cooperative": 0, "consumer": 0}
    for plan, setting in zip(plans, settings, strict=True):
        assert setting.specs.keys() == plan.members.keys()
        assert all(spec.style == "run" for spec in setting.specs.values()) or not setting.mode.in_order
        spec = plan.members["spare"]
        protocols["consumer" if spec.is_consumer else "cooperative" if spec.is_cooperative else "eager"] += 1
        assert spec.is_cooperative or not setting.mode.in_order
    assert min(protocols.values()) > 30
    assert {spec.style for setting in settings for spec in setting.specs.values()} == {"run", "loop", "batch"}
    assert {setting.last_attempt for setting in settings} == {None, 3, 4, 6, 17}
    drawn = {action.kind for plan in plans for action in plan.actions}
    assert drawn == set(ACTIONS)
    assert sum(plan.is_orderly for plan in plans) > 20


# --- mutations are detected - ---------------------------------------------------------------------------------------

QUICKLY_FOUND = (
    "mark before handling",
    "no commit at the end",
    "start one record later",
    "never leaves",
    "responses before the append",
    "older offsets are fetched",
    "some batches are not handed out",
    "two coordinators",
    "a failed batch goes behind the next ones",
    "a batch is sent again under new numbers",
)

FOUND_BY_ONE = {
    "a static leader assumes current partition counts": 496,
    "a stale generation may commit": 497,
    "the generation stays the same": 497,
    "commits have the epoch of the last assignment": CONSUMERS + 4051,
    "heartbeats are answered before the append": CONSUMERS + 969,
    "commits with a stale epoch are not repeated": CONSUMERS + 135,
    "a join releases all partitions": MIXED + 73,
    "a refused sync is final": MIXED + 206,
    "a group that became classic is final": MIXED + 555,
    "an upgrade has the epoch before": MIXED + 60,
    "a fenced member goes on": CONSUMERS + 26,
    "a downgrade does not rebalance": MIXED + 497,
    "a removed member keeps its partitions": MIXED + 8382,
    "a consumer leaves before it joins": CONSUMERS + 5458,
}
"""Mutations that only one seed in hundreds detects; the eleventh and the twelfth, one in thirty, the last two, one in thousands.

The first one needs a leader that returns after its topic was extended, the next two a static member whose handler ignores
its cancellation while its partition belongs to another member, the next one a session that ends between a new epoch and its
assignment, with a coordinator that refuses older epochs, the next one a coordinator that stops between answer and append, the
next three ones a cooperative member that joins while it revokes, a static member that takes the place of the last one with the
consumer protocol, and a member whose group becomes a classic one without it, the next one a classic member that commits after
an upgrade in which its partition has lost its owner, the next one a classic member that a consumer group removes while it
joins, and the last one a static member of a slow network that is closed while it joins.
"""


@pytest.mark.parametrize("mutation", long_family(QUICKLY_FOUND))
def test_mutations_are_detected(mutation: str):
    assert find_mutation(mutation, range(40)) is not None


@pytest.mark.parametrize(("mutation", "seed"), long_family(FOUND_BY_ONE.items()))
def test_mutations_that_rarely_matter_are_detected(mutation: str, seed: int):
    assert find_mutation(mutation, [seed]) is not None
    check([seed])


OF_QUEUES = {
    "a window commits one record more": 0,
    "attempts are not committed": 1,
    "claims are never closed": 2,
    "a window is not restored": 1,
    "attempts are not restored": 1,
    "released deliveries are acknowledged": 23,
    "a nack frees the key": 16,
    "keys are ignored": 5,
    "deliveries after a revocation": 5,
    "the window is ignored": 2,
    "late results count": 178,
    "retries lose their place": 0,
    "cancelled workers go on": 3,
    "late acks raise": 115,
    "ack timeouts are not counted": 7,
    "timers are late": 1,
    "retries are early": 0,
    "copies are due at once": 2,
    "acknowledged before the copy": 2,
    "a dead letter is early": 0,
    "a copy that was given up counts": 324,
}
"""Mutations of work queues, each with a seed that detects it."""


@pytest.mark.parametrize(("mutation", "seed"), long_family(OF_QUEUES.items()))
def test_mutations_of_work_queues_are_detected(mutation: str, seed: int):
    assert find_mutation(mutation, [QUEUES + seed]) is not None
    check([QUEUES + seed])


def test_every_mutation_of_work_queues_has_a_seed():
    assert OF_QUEUES.keys() == QUEUE_MUTANTS.keys()


def test_every_mutation_still_applies_to_the_code():
    for mutation in MUTATIONS.values():
        with mutation():
            pass


OFTEN_FOUND = [name for name in MUTATIONS if name not in (*QUICKLY_FOUND, *FOUND_BY_ONE, *OF_QUEUES)]
OF_PROTOCOLS = (
    *COOPERATIVE_MUTANTS,
    *(name for name in (*CONSUMER_MUTANTS, *MIXED_MUTANTS) if name not in FOUND_BY_ONE),
)


@pytest.mark.parametrize("mutation", long_family(OF_PROTOCOLS))
def test_mutations_of_group_protocols_are_detected(mutation: str):
    assert find_mutation(mutation, range(40)) is not None


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutation", OFTEN_FOUND)
def test_every_mutation_is_found(mutation: str):
    assert find_mutation(mutation, range(400)) is not None


def test_the_shortest_plan_of_a_failure():
    with MUTATIONS["no commit at the end"]():
        failed = find_mutation("no commit at the end", range(40))
        assert failed is not None
        plan, shortest = shrink(
            plan_of(failed.seed), failed, run_plan, 5.0 if current_profile() == "full" else 1.0
        )
        assert shortest.violation is not None
        text = describe_failure(shortest, plan)
    assert failed.violation is not None
    assert shortest.violation.name == failed.violation.name
    assert len(plan.actions) < len(plan_of(failed.seed).actions)
    assert f"seed {failed.seed} violates: {failed.violation.name}" in text


def test_shrinking_removes_all_unneeded_actions():
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
    smallest, _ = shrink(plan, failed, run)
    assert set(smallest.actions) == culprits


# --- the command ---------------------------------------------------------------------------------------------------


def test_the_command_prints_a_run(capsys: pytest.CaptureFixture[str]):
    assert main(["--seed", "17", "--story"]) == 0
    output = capsys.readouterr().out.splitlines()
    story = run_seed(17).story
    assert output[-len(story) - 1 : -1] == story
    assert output[0].startswith("seed 17: ")
    assert any(line.startswith("  m1: ") for line in output)
    assert "no violation" in output[-1]
    assert any("plan         join(m1)" in line for line in output)
    assert any(" coordinator  node " in line for line in output), "the observer is not called by the brokers"


@pytest.mark.full
def test_the_table(capsys: pytest.CaptureFixture[str]):
    assert main(["--seeds", "0:2", "--jobs", "2"]) == 0
    output = capsys.readouterr().out
    assert "2 runs" in output
    assert "action join" in output


def test_a_failing_command(capsys: pytest.CaptureFixture[str]):
    with MUTATIONS["commit one record more"]():
        assert main(["--seed", "0"]) == 1
        output = capsys.readouterr().out
        assert main(["--seed", "0", "--story"]) == 1
    assert "seed 0 violates: commits never pass unhandled records" in output
    assert "VIOLATED commits never pass unhandled records: seeds 0" in output


def test_the_command_runs_mutations(capsys: pytest.CaptureFixture[str]):
    assert main(["--mutation", "start one record later", "--seeds", "0:5"]) == 0
    assert main(["--mutation", "never leaves", "--seeds", "0:0"]) == 1
    found, missed = capsys.readouterr().out.splitlines()
    assert found.startswith("start one record later")
    assert "seed 0 " in found
    assert "NOT FOUND in 0 seeds" in missed


@pytest.mark.parametrize(
    ("seeds", "message"),
    [("5:2", "'5:2' is not a range of seeds"), ("x", "'x' is neither a seed nor FROM:TO"), ("3:", "neither")],
)
def test_invalid_seeds(capsys: pytest.CaptureFixture[str], seeds: str, message: str):
    with pytest.raises(SystemExit):
        main(["--seeds", seeds])
    assert message in capsys.readouterr().err


def test_torn_files_end_in_the_beginning_of_a_write(tmp_path: Path):
    """Never after the complete write: that would be an append that did not happen."""
    batch = bytes(8) + (40).to_bytes(4, "big") + b"b" * 40
    frame = (30).to_bytes(4, "big") + b"c" * 4 + b"f" * 30
    for number in range(30):
        (tmp_path / f"{number}").mkdir()
        (tmp_path / f"{number}" / "00000000000000000000.log").write_bytes(batch * 2)
        (tmp_path / f"{number}" / "00000000000000000006.log").write_bytes(batch)
        (tmp_path / f"{number:010}.metadata").write_bytes(frame)
    assert tear(tmp_path, random.Random(1)) == len(torn(tmp_path, batch, frame)) > 6
    assert {path.suffix for path in torn(tmp_path, batch, frame)} == {".log", ".metadata"}


def torn(directory: Path, batch: bytes, frame: bytes) -> list[Path]:
    """Return the files that became longer."""
    wholes = {"00000000000000000000.log": batch * 2, "00000000000000000006.log": batch}
    found = []
    for path in directory.rglob("*.*"):
        whole, content = wholes.get(path.name, frame), path.read_bytes()
        assert content.startswith(whole)
        more = content.removeprefix(whole)
        assert not more or (path.name[-5] != "0" and len(more) < (52 if path.suffix == ".log" else 38))
        found += [path] if more else []
    return found


def test_the_text_of_an_action():
    assert str(Action(1.5, "block_client", ("m1", 4.0))) == "block_client(m1, 4.0)"
