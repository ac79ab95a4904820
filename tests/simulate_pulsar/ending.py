"""The end of a run: faults stop, everything must be received and acknowledged within a limit, then all close and nothing is left."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Final

from tests.simulate_pulsar.attachments import hand_over, unbalanced
from tests.simulate_pulsar.consumer import SimConsumer
from tests.simulate_pulsar.oracle import MessagePlace
from tests.simulate_pulsar.plan import RESULTS, SubscriptionSpec
from tests.simulate_pulsar.planner import spare_of
from tests.simulate_pulsar.queue_member import LONGEST_WORK, NACK_BACKOFF, is_poison, name_of_value
from tests.simulate_pulsar.stored import LoggedMessage, messages_in
from tests.simulate_pulsar.world import PulsarWorld
from tests.simulation.story import Violation

__all__ = ["close_all", "end_faults"]

TIMEOUT: Final = 240.0
"""Seconds from the last fault until all is done: a broker notices a half-open connection after 60 s, then a client may wait for
the longest pause, and incomplete values expire after 60 s."""

QUIET: Final = 100.0
"""Seconds until brokers and clients have noticed the last half-open connections, and all permits are there."""


async def end_faults(world: PulsarWorld) -> None:
    """End all faults, and check that everything is stored, received and acknowledged."""
    world.story.write("plan", "faults end")
    world.pulsar.faults.clear()
    world.network.end_all()
    for program in world.programs:
        program.gate.set()
    for consumer in world.consumers.values():
        consumer.is_calm = True
        if isinstance(consumer, SimConsumer):
            consumer.pause(False)
    for name in world.plan.setting.subscriptions:
        if not any(each.is_active and each.spec.subscription == name for each in world.consumers.values()):
            world.join(spare_of(world.plan, name)).is_calm = True
    for topic in world.observer.stranded(world.deaths):
        world.pulsar.unload(topic)
    began = world.loop.time()
    await world.within(TIMEOUT, "all is stored", lambda: _unsent(world))
    limit = TIMEOUT + max(
        _seconds_of_failures(world, spec) for spec in world.plan.setting.subscriptions.values()
    )
    await world.within(limit, "all is acknowledged", lambda: _backlog(world))
    stored = _check_logs(world)
    world.story.count("ms to settle", round((world.loop.time() - began) * 1000))
    for spec in world.plan.setting.subscriptions.values():
        _check_received(world, spec, stored)
    await world.until(world.loop.time() + QUIET)
    await world.within(TIMEOUT, "permits balance", lambda: unbalanced(world))
    for spec in world.plan.setting.subscriptions.values():
        if spec.kind == "exclusive":
            await hand_over(world, spec, TIMEOUT)


# --- producers --------------------------------------------------------------------------------------------------------


def _unsent(world: PulsarWorld) -> str | None:
    left = [repr(each) for each in world.producers.values() if not each.is_done]
    return ", ".join(left) or None


def _check_logs(world: PulsarWorld) -> dict[str, list[LoggedMessage]]:
    """Check the logs of all topics; return their messages, by partition."""
    found: dict[str, list[LoggedMessage]] = {}
    names: defaultdict[bytes, int] = defaultdict(int)
    for topic in world.plan.setting.topics:
        for part in world.parts(topic):
            messages = found[str(part.name)] = list(messages_in(part))
            if topic != RESULTS:
                _check_order(world, str(part.name), messages)
            for message in messages:
                names[name_of_value(message.value)] += 1
    for producer in world.producers.values():
        lost = [name.decode() for name in producer.stored if not names[name]]
        if lost:
            raise Violation("what has a receipt is stored", f"{producer.name} has lost {lost}")
    if world.plan.setting.deduplicates:
        twice = [name.decode() for name, times in names.items() if times > 1]
        if twice:
            raise Violation("nothing is stored twice", f"{twice}")
    return found


def _check_order(world: PulsarWorld, topic: str, messages: list[LoggedMessage]) -> None:
    """Check that messages of a producer are in their order: all of a partition, or those of a key."""
    last: dict[tuple[str, bytes | None], bytes] = {}
    seen: set[bytes] = set()
    for message in messages:
        name = name_of_value(message.value)
        if name in seen:
            continue  # sent again
        seen.add(name)
        spec = world.plan.producers[message.producer]
        lane = message.producer, message.key if spec.by_key else None
        if lane in last and name < last[lane]:
            text = f"{name.decode()} after {last[lane].decode()} in {topic}"
            raise Violation("messages are stored in order", text)
        last[lane] = name


# --- subscriptions ----------------------------------------------------------------------------------------------------


def _seconds_of_failures(world: PulsarWorld, spec: SubscriptionSpec) -> float:
    """Return how long a queue that keeps the order waits for redeliveries: for one message that always fails after the other."""
    rules = spec.queue
    if rules is None or not spec.in_order:
        return 0.0
    stored = [message for part in world.parts(spec.topic) for message in messages_in(part)]
    failing = sum(is_poison(world.plan.seed, rules, message.value) for message in stored)
    work = max(each.spec.work_seconds for each in world.consumers.values()) * LONGEST_WORK
    pauses = sum(NACK_BACKOFF.delay(attempt) for attempt in range(1, rules.max_redeliveries + 1))
    return failing * (pauses + (rules.max_redeliveries + 1) * work)


def _backlog(world: PulsarWorld) -> str | None:
    for spec in world.plan.setting.subscriptions.values():
        topics = [spec.topic]
        if spec.queue is not None and spec.queue.has_retry:
            topics.append(f"{spec.topic}-{spec.name}-RETRY")
        for topic in topics:
            if world.topic_name(topic) not in _known(world):
                continue
            for part in world.parts(topic):
                found = part.subscriptions.get(spec.name)
                if found is None:
                    return f"{part.name} has no subscription {spec.name}"
                if found.backlog:
                    holders = {each.name: each.pending for each in found.consumers}
                    return f"{part.name}: {spec.name} has a backlog of {found.backlog}: {found!r}, {holders}"
    return None


def _known(world: PulsarWorld) -> set[str]:
    return {str(name.whole) for name in world.runtime.namespaces.topics}


def _check_received(
    world: PulsarWorld, spec: SubscriptionSpec, stored: dict[str, list[LoggedMessage]]
) -> None:
    """Check that each message was received, or is done by a work queue."""
    oracle = world.oracles[spec.name]
    names = [str(part.name) for part in world.parts(spec.topic)]
    if spec.queue is not None:
        _check_queue(world, spec, {name_of_value(each.value) for name in names for each in stored[name]})
        return
    if spec.transforms:
        _check_results(world, {(name, message.place) for name in names for message in stored[name]})
    for name in names:
        part = oracle.at(name)
        lost = [
            f"{message.value[:9]!r} at {tuple(message.place)}"
            for message in stored[name]
            if message.place not in part.received
            and message.place not in part.kept_over_seek
            and (part.required_from is None or message.place >= part.required_from)
        ]
        extra = part.received.keys() - {message.place for message in stored[name]}
        if extra:
            text = f"{spec.name} has got {sorted(map(tuple, extra))} of {name}"
            raise Violation("messages of aborted transactions are not received", text)
        if lost:
            raise Violation("each message is received", f"{spec.name} has not got {lost} of {name}")


def _check_results(world: PulsarWorld, places: set[tuple[str, MessagePlace]]) -> None:
    """Check that transactions have sent one message for each that they have acknowledged."""
    found: Counter[tuple[str, MessagePlace]] = Counter()
    for part in world.parts(RESULTS):
        for message in messages_in(part):
            topic, *place = message.value.decode().split(",")
            found[topic, MessagePlace(*map(int, place))] += 1
    world.story.count("results", found.total())
    if lost := sorted(places - found.keys()):
        raise Violation("transactions are whole", f"there is no result of {lost}")
    if twice := sorted(place for place, count in found.items() if count > 1):
        raise Violation("transactions are whole", f"there are several results of {twice}")


def _check_queue(world: PulsarWorld, spec: SubscriptionSpec, values: set[bytes]) -> None:
    """Check that a work queue has handled each message, or written it to the dead letter topic after the last delivery."""
    assert spec.queue is not None
    oracle, topic = world.oracles[spec.name], f"{spec.topic}-{spec.name}-DLQ"
    parts = world.parts(topic) if world.topic_name(topic) in _known(world) else []
    dead = [name_of_value(each.value) for part in parts for each in messages_in(part)]
    poison = {value for value in values if is_poison(world.plan.seed, spec.queue, value)}
    world.story.count("dead letters", len(dead))
    if wrong := set(dead) - poison:
        raise Violation("dead letters are messages that always fail", f"{spec.name}: {sorted(wrong)}")
    if lost := poison - set(dead):
        raise Violation("messages that always fail are dead letters", f"{spec.name}: {sorted(lost)}")
    if lost := values - poison - oracle.handled:
        raise Violation("each message is handled", f"{spec.name}: {sorted(lost)}")
    if world.plan.is_exact(spec.name) and len(dead) > len(set(dead)):
        raise Violation("orderly actions write no dead letter twice", f"{spec.name}: {sorted(dead)}")
    few = [value for value in poison if oracle.failures[value] < spec.queue.max_redeliveries + 1]
    if few and world.plan.is_orderly:
        raise Violation("dead letters have had all their deliveries", f"{spec.name}: {few}")


# --- the end ----------------------------------------------------------------------------------------------------------


async def close_all(world: PulsarWorld) -> None:
    """Close all programs in order; each must end."""
    for program in world.programs:
        program.leave()
    await world.all_tasks_end("programs", 60.0)
