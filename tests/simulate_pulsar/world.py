"""The parts of a run: the embedded Pulsar, the network, the programs, and what is known of them."""

from __future__ import annotations

import asyncio
import random
from typing import Final, TypeAlias

from asyncgroup.model import clock_of_loop
from asyncgroup.pulsar.wire.topic_name import TopicName
from asyncgroup.pulsar_broker.embedded import EmbeddedPulsar
from asyncgroup.pulsar_broker.topics.topic import BrokerTopic
from tests.pulsar_broker.internals import runtime_of
from tests.simulate_pulsar.consumer import SimConsumer
from tests.simulate_pulsar.observer import PushObserver
from tests.simulate_pulsar.oracle import SubscriptionOracle
from tests.simulate_pulsar.plan import ConsumerSpec, SimPlan
from tests.simulate_pulsar.producer import SimPulsarProducer
from tests.simulate_pulsar.program import PulsarProgram
from tests.simulate_pulsar.queue_member import SimQueueMember
from tests.simulate_pulsar.transformer import SimTransformer
from tests.simulation.conditions import SimulatedNetwork
from tests.simulation.world import PlannedWorld

AnyConsumer: TypeAlias = SimConsumer | SimQueueMember | SimTransformer

__all__ = ["PORT", "PulsarWorld", "host_of"]

PORT: Final = 6650


def host_of(number: int) -> str:
    """Return the address of a broker."""
    return f"10.0.0.{number}"


class PulsarWorld(PlannedWorld[SimPlan]):
    """All parts of a run."""

    step = 0.5

    def __init__(self, plan: SimPlan, network: SimulatedNetwork) -> None:
        super().__init__(plan, network, {})
        self.now_ms = clock_of_loop()
        setting = plan.setting
        self.oracles = {name: SubscriptionOracle(spec) for name, spec in setting.subscriptions.items()}
        self.observer = PushObserver(self.oracles, self.fail, self.now_ms, self.loop.time, self.story.count)
        self.pulsar = EmbeddedPulsar(
            hosts=[host_of(number) for number in range(1, setting.brokers + 1)],
            port=PORT,
            failover_delay=setting.failover_delay,
            deduplication=setting.deduplicates,
            history_limit=100_000,
            history_bytes=1 << 30,
        )
        self.runtime = runtime_of(self.pulsar)
        self.consumers: dict[str, AnyConsumer] = {}
        self.producers: dict[str, SimPulsarProducer] = {}
        self.deaths: list[float] = []
        """When processes were killed, in the loop's time."""
        self._stopped: set[int] = set()

    # --- programs ---------------------------------------------------------------------------------------------------------

    @property
    def service_url(self) -> str:
        """The addresses of all brokers."""
        return self.pulsar.service_url

    def join(self, spec: ConsumerSpec) -> AnyConsumer:
        """Start a program with a consumer."""
        host = f"10.1.0.{len(self.consumers) + 1}"
        self._hosts[host] = spec.name
        subscription = self.plan.setting.subscriptions[spec.subscription]
        made = SimTransformer if subscription.transforms else SimConsumer
        found: AnyConsumer = (made if subscription.queue is None else SimQueueMember)(self, spec, host)
        self.consumers[spec.name] = found
        found.start()
        return found

    def program(self, name: str) -> PulsarProgram | None:
        """Return a program that is active."""
        found: PulsarProgram | None = self.consumers.get(name) or self.producers.get(name)
        return found if found is not None and found.is_active else None

    @property
    def programs(self) -> list[PulsarProgram]:
        """All programs that are active."""
        return [each for each in (*self.consumers.values(), *self.producers.values()) if each.is_active]

    # --- topics -----------------------------------------------------------------------------------------------------------

    @staticmethod
    def topic_name(topic: str) -> str:
        """Return the complete name of a topic."""
        return str(TopicName.parse(topic))

    def parts(self, topic: str) -> list[BrokerTopic]:
        """Return the partitions of a topic, or the topic without any."""
        return self.runtime.namespaces.parts_of(TopicName.parse(topic))

    # --- brokers ----------------------------------------------------------------------------------------------------------

    def stop_broker(self, number: int, seconds: float) -> None:
        """Stop a broker, and start it again after `seconds`."""
        if number not in self._stopped:
            self._stopped.add(number)
            self.spawn(self._restart_broker(number, seconds), f"broker {number} is down")

    async def _restart_broker(self, number: int, seconds: float) -> None:
        node = self.runtime.nodes[number]
        await node.stop()
        await asyncio.sleep(seconds)
        await node.start()
        self._stopped.discard(number)
        self.story.write(f"broker {number}", "is up again")

    # --- the plan ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the brokers and the producers, and create the topics."""
        setting = self.plan.setting
        await self.pulsar.__aenter__()
        for node in self.runtime.nodes.values():
            node.max_unacked = setting.max_unacked
        for topic, partitions in setting.topics.items():
            self.pulsar.create_topic(topic, partitions)
        for spec in setting.subscriptions.values():
            self.pulsar.create_subscription(spec.topic, spec.name, position="earliest")
        for number, producer in enumerate(self.plan.producers.values(), 1):
            host = f"10.2.0.{number}"
            self._hosts[host] = producer.name
            self.producers[producer.name] = SimPulsarProducer(self, producer, host)
            self.producers[producer.name].start()
        self.network.conditions.is_on = True

    async def end(self) -> None:
        """Stop the brokers."""
        await self.pulsar.__aexit__(None, None, None)


def random_of(plan: SimPlan, what: str) -> random.Random:
    """Return a separate random generator for each purpose."""
    return random.Random(f"pulsar {plan.seed} {what}")
