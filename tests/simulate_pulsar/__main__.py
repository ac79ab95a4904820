"""`python -m tests.simulate_pulsar --seeds 0:200`: simulations of Pulsar's client and the embedded brokers, by seed.

    --seeds 0:200        run these seeds; from 1000000 on with transactions
    --jobs 2             number of processes
    --seed 17 --story    one run with its events line by line; --requests adds every request
    --json               one JSON object per run and line, instead of text
    --no-shrink          do not shorten the plans of failing runs
    --mutation "name"    introduce a bug into clients or brokers, and find the first seed that detects it; `all`: each in turn

The exit status is 1 if a run violated an invariant, or a mutation was not detected.
"""

from __future__ import annotations

from typing import Final

from tests.simulate_pulsar.mutations import MUTATIONS, find_mutation
from tests.simulate_pulsar.plan import SimPlan
from tests.simulate_pulsar.planner import ACTIONS, plan_of
from tests.simulate_pulsar.report import describe_failed_run, describe_script
from tests.simulate_pulsar.run import run_plan, run_seed
from tests.simulation.command import Simulation, exit_with

__all__ = ["PULSAR_SIMULATION"]

PULSAR_SIMULATION: Final[Simulation[SimPlan]] = Simulation(
    module="tests.simulate_pulsar",
    about=__doc__,
    actions=ACTIONS,
    until="all is acknowledged",
    plan_of=plan_of,
    run_plan=run_plan,
    run_seed=run_seed,
    describe=describe_script,
    describe_failure=describe_failed_run,
    mutations=MUTATIONS,
    find_mutation=find_mutation,
)
"""The simulation of Pulsar's client and the embedded Pulsar."""

if __name__ == "__main__":
    exit_with(PULSAR_SIMULATION.main)
