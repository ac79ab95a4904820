"""`python -m tests.simulate --seeds 0:200`: run simulations by seed, and report violated invariants.

    --seeds 0:200        run these seeds (a single number: one run); from 1000000 on with cooperative members,
                         from 2000000 on with those of the consumer protocol, from 3000000 on with both,
                         from 4000000 on with work queues
    --jobs 2             number of processes
    --seed 17 --story    one run with its events line by line; --requests adds every request
    --json               one JSON object per run and line, instead of text
    --no-shrink          do not shorten the plans of failing runs
    --mutation "name"    introduce a bug into the clients or brokers, and find the first seed that detects it; `all`: every
                         mutation in turn

The exit status is 1 if a run violated an invariant, or a mutation was not detected.
"""

from __future__ import annotations

from typing import Final

from tests.simulate.mutations import MUTATIONS, find_mutation
from tests.simulate.plan import Plan
from tests.simulate.planner import ACTIONS
from tests.simulate.report import describe_failure, describe_plan
from tests.simulate.run import run_plan, run_seed
from tests.simulate.seeds import plan_of
from tests.simulation.command import Simulation, exit_with

__all__ = ["SIMULATION"]

SIMULATION: Final[Simulation[Plan]] = Simulation(
    module="tests.simulate",
    about=__doc__,
    actions=ACTIONS,
    until="a group is stable",
    plan_of=plan_of,
    run_plan=run_plan,
    run_seed=run_seed,
    describe=describe_plan,
    describe_failure=describe_failure,
    mutations=MUTATIONS,
    find_mutation=find_mutation,
)
"""The simulation of Kafka's groups, producers and work queues."""

if __name__ == "__main__":
    exit_with(SIMULATION.main)
