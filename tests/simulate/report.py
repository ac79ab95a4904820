"""Descriptions of plans and failing runs."""

from __future__ import annotations

from dataclasses import fields, replace

from tests.simulate.plan import MemberSpec, Plan
from tests.simulation.report import describe_run
from tests.simulation.run import Outcome

__all__ = ["describe_failure", "describe_plan"]


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
    """Describe a failed run, with those members that its plan names."""
    named = {str(arg) for action in plan.actions for arg in action.args}
    members = {name: spec for name, spec in plan.members.items() if name in named}
    return describe_run(outcome, plan, describe_plan(replace(plan, members=members)))
