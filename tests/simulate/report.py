"""Summaries of many runs, and descriptions of plans and failing runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, replace

from tests.simulate.plan import MemberSpec, Plan
from tests.simulate.planner import ACTIONS
from tests.simulate.run import Outcome

__all__ = ["Summary", "describe_failure", "describe_plan"]


class Summary:
    """Sums of outcomes, without their stories."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.runs_with: Counter[str] = Counter()
        self.broken: dict[str, list[int]] = {}
        self.runs = 0
        self.virtual_seconds = self.real_seconds = 0.0
        self.slowest_to_stabilize = (0, -1)

    def add(self, outcome: Outcome) -> None:
        """Add a run."""
        self.runs += 1
        self.counts += outcome.counts
        self.runs_with.update(outcome.counts.keys())
        self.virtual_seconds += outcome.virtual_seconds
        self.real_seconds += outcome.real_seconds
        settled = (outcome.counts["ms to settle"], outcome.seed)
        self.slowest_to_stabilize = max(self.slowest_to_stabilize, settled)
        if outcome.violation is not None:
            self.broken.setdefault(outcome.violation.name, []).append(outcome.seed)

    @property
    def unused(self) -> list[str]:
        """Kinds of actions that no run had."""
        return [kind for kind in ACTIONS if not self.counts[f"action {kind}"]]

    def lines(self) -> list[str]:
        """Return the lines of the summary table."""
        rows = [("", "times", "in runs")]
        names = sorted(name for name in self.counts if name != "ms to settle")
        rows.extend((name, f"{self.counts[name]:,}", f"{self.runs_with[name]:,}") for name in names)
        width = max(len(row[0]) for row in rows)
        table = [f"{name:<{width}}  {times:>10}  {runs:>8}" for name, times, runs in rows]
        milliseconds, seed = self.slowest_to_stabilize
        pace = self.real_seconds / max(1, self.runs)
        return [
            *table,
            "",
            f"{self.runs:,} runs, {self.virtual_seconds / 3600:.1f} hours of virtual time, {pace:.3f} s a run",
            f"longest time to a stable group after the faults: {milliseconds / 1000:.2f} s (seed {seed})",
            f"unused kinds of actions: {', '.join(self.unused) or 'none'}",
            *(f"VIOLATED {name}: seeds {_some(seeds)}" for name, seeds in sorted(self.broken.items())),
        ]


def _some(seeds: Sequence[int]) -> str:
    more = f" and {len(seeds) - 12} more" if len(seeds) > 12 else ""
    return ", ".join(map(str, seeds[:12])) + more


def describe_plan(plan: Plan) -> list[str]:
    """Describe the cluster and the members, a line each."""
    setting = plan.setting
    topics = ", ".join(f"{name}:{partitions}" for name, partitions in setting.topics.items())
    world = f"{setting.nodes} nodes{' on disk' if setting.is_on_disk else ''}, topics {topics}"
    network = f"{setting.latency_profile} network in chunks of {setting.chunk_size} bytes"
    delays = f"append {setting.offsets_append_delay:g} s, load {setting.offsets_load_delay:g} s"
    lines = [
        f"seed {plan.seed}: {world}, {network}, faults end at {plan.faults_end_at:.3f} s",
        f"  initial rebalance delay {setting.initial_rebalance_delay:g} s; __consumer_offsets: {delays}",
        f"  session timeout {setting.session_timeout:g} s, a heartbeat every {setting.heartbeat_interval:g} s",
    ]
    if setting.has_strict_epochs:
        lines.append("  commits must have the present epoch")
    if plan.others:
        lines.append(f"  migration policy {setting.migration_policy}")
    if setting.racks:
        lines.append(f"  racks of the nodes: {', '.join(setting.racks)}")
    if (queues := plan.queues) is not None:
        values = {item.name: getattr(queues, item.name) for item in fields(queues) if item.name != "specs"}
        lines.append(f"  work queues: {', '.join(f'{name}={value}' for name, value in values.items())}")
        lines += [f"  {name}: {queues.specs[name]}" for name in plan.members]
    return [*lines, *(f"  {_member(one)}" for one in plan.members.values())]


def _member(spec: MemberSpec) -> str:
    commits = f"every {spec.auto_commit_interval:g} s" if spec.auto_commit else "by hand"
    topics = repr(spec.topics) if isinstance(spec.topics, str) else ", ".join(spec.topics)
    topics += " matched by the broker" * spec.matches_at_broker
    assignors = " or ".join(spec.assignors) or "any assignor"
    protocol = f"consumer protocol with {assignors}" if spec.is_consumer else assignors
    place = f"static {spec.instance_id}" if spec.instance_id else "dynamic"
    return (
        f"{spec.name}: {place}{f' in rack {spec.rack_id}' * bool(spec.rack_id)}, {topics}, {protocol}, commits {commits}, reads {spec.style}, "
        f"marks every {spec.mark_every}, rebalance timeout {spec.rebalance_timeout:g} s, "
        f"buffer {spec.buffer_bytes} bytes, tempo {spec.work_seconds:g} s"
    )


def describe_failure(outcome: Outcome, plan: Plan) -> str:
    """Describe a failed run: the seed, the invariant, the shortened plan, and the story."""
    assert outcome.violation is not None
    actions = [f"{action.at:8.3f} {action}" for action in plan.actions]
    named = {str(arg) for action in plan.actions for arg in action.args}
    members = {name: spec for name, spec in plan.members.items() if name in named}
    return "\n".join(
        [
            f"seed {outcome.seed} violates: {outcome.violation.name}",
            f"  {outcome.violation.text}",
            *describe_plan(replace(plan, members=members)),
            "plan:",
            *(f"  {action}" for action in actions),
            "story:",
            *(f"  {line}" for line in outcome.story),
        ]
    )
