"""Stories about dynamic settings of brokers and groups: altered, rejected, described with all synonyms."""

from __future__ import annotations

from typing import Any

from asyncgroup.wire import messages as m
from tests.interop.parity.scene import Scene

__all__ = [
    "all_settings_of_a_broker",
    "loggers",
    "security_settings_of_brokers",
    "settings_of_brokers",
    "settings_of_groups",
]

TOPIC, NODE, LOGGER, GROUP = 2, 4, 8, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
DYNAMIC_BROKER, DEFAULT = 2, 5
"""The sources of a value that was set for one broker, and of a default."""

Changes = list[tuple[str, int, str | None]]


def _altered(kind: int, name: str, *changes: tuple[str, int, str | None], validate: bool = False) -> Any:
    cls = m.IncrementalAlterConfigsRequest
    return cls(
        [cls.AlterConfigsResource(kind, name, [cls.AlterableConfig(*change) for change in changes])], validate
    )


def _whole(kind: int, name: str, *settings: tuple[str, str | None]) -> Any:
    cls = m.AlterConfigsRequest
    return cls([cls.AlterConfigsResource(kind, name, [cls.AlterableConfig(*each) for each in settings])])


def _described(kind: int, name: str, *keys: str) -> Any:
    cls = m.DescribeConfigsRequest
    return cls([cls.DescribeConfigsResource(kind, name, list(keys) or None)], include_synonyms=True)


async def _until(scene: Scene, label: str, request: Any, key: str, value: str) -> None:
    """Describe the settings after the broker has applied the change."""

    def heard(answer: Any) -> bool:
        return any(each.name == key and each.value == value for each in answer.results[0].configs)

    await scene.ask(label, request, until=heard)


def _has_own_value(answer: Any) -> bool:
    """Whether the one setting that is described was set for this broker; a sensitive one shows no value."""
    (config,) = answer.results[0].configs
    return config.config_source == DYNAMIC_BROKER or (config.config_source < 0 and not config.is_default)


def _is_reset(answer: Any) -> bool:
    """Whether the two settings that were set last have their defaults again, and no value of this broker or of all."""
    found = {each.name: (each.value, each.config_source) for each in answer.results[0].configs}
    expected = {"log.segment.bytes": ("1073741824", DEFAULT), "log.retention.ms": (None, DEFAULT)}
    return found.items() >= expected.items()


async def settings_of_brokers(scene: Scene) -> None:
    """IncrementalAlterConfigs, AlterConfigs and DescribeConfigs of one broker and of all."""
    topic = await scene.topic("settings", 1)
    largest = "log.segment.bytes"
    cases: dict[str, tuple[str, Changes]] = {
        "read-only": ("1", [("num.partitions", SET, "3")]),
        "read-only, of all": ("", [("num.partitions", SET, "3")]),
        "read-only, deleted": ("1", [("num.partitions", DELETE, None)]),
        "no number": ("1", [("log.retention.ms", SET, "x")]),
        "too low": ("", [("message.max.bytes", SET, "-1")]),
        "no codec": ("1", [("compression.type", SET, "nope")]),
        "no threads": ("", [("num.io.threads", SET, "0")]),
        "no list": ("", [("message.max.bytes", APPEND, "1")]),
        "another broker": ("7", [(largest, SET, "2000000")]),
        "no broker": ("x", [(largest, SET, "2000000")]),
        "mechanisms of all": ("", [("sasl.enabled.mechanisms", SET, "PLAIN")]),
        "seconds that are none": ("1", [("sasl.login.refresh.buffer.seconds", SET, "99999")]),
        "client authentication that is none": ("1", [("listener.name.x.ssl.client.auth", SET, "maybe")]),
        "a callback handler": ("1", [("sasl.server.callback.handler.class", SET, "a.B")]),
        "listeners": ("1", [("listeners", SET, "PLAINTEXT://:1")]),
        "listeners of all": ("", [("listeners", SET, "PLAINTEXT://:1")]),
        "a principal builder": ("1", [("principal.builder.class", SET, "a.B")]),
        "connections of a listener, of all": ("", [("listener.name.x.max.connections", SET, "x")]),
        "an internal one": ("1", [("unstable.api.versions.enable", SET, "true")]),
        "a list of a listener": ("1", [("listener.name.x.sasl.enabled.mechanisms", APPEND, "PLAIN")]),
        "a key store": ("1", [("ssl.keystore.location", SET, "x")]),
        "a key store of all": ("", [("listener.name.x.ssl.keystore.location", SET, "x")]),
        "replicas of a broker": ("1", [("min.insync.replicas", SET, "2")]),
        "replicas of none": ("", [("min.insync.replicas", DELETE, None)]),
        "one good, one bad": ("1", [(largest, SET, "2000000"), ("num.partitions", SET, "3")]),
        "twice the same": ("1", [(largest, SET, "2000000"), (largest, SET, "2000001")]),
        "no value": ("1", [(largest, SET, None)]),
        "no operation": ("1", [(largest, 9, "1")]),
        "nothing": ("1", []),
    }
    for label, (name, changes) in cases.items():
        await scene.ask(label, _altered(NODE, name, *changes))
    await scene.ask("only tried", _altered(NODE, "", (largest, SET, "3000000"), validate=True))
    await scene.ask("of all", _altered(NODE, "", (largest, SET, "3000000")))
    await _until(scene, "described of all", _described(NODE, ""), largest, "3000000")
    await scene.ask("of one", _altered(NODE, "1", (largest, SET, " 4000000 ")))
    await _until(scene, "described of one", _described(NODE, "1", largest), largest, "4000000")
    await _until(
        scene, "described of a topic", _described(TOPIC, topic, "segment.bytes"), "segment.bytes", "4000000"
    )
    await scene.ask("a list", _altered(NODE, "1", ("log.cleanup.policy", APPEND, "compact")))
    await scene.ask("an unknown name", _altered(NODE, "1", ("no.such.thing", SET, "x")))
    rate = "leader.replication.throttled.rate"
    await scene.ask("a rate", _altered(NODE, "1", (rate, SET, "1000")))
    keys = ("log.cleanup.policy", "no.such.thing", rate, "log.retention.ms", "min.insync.replicas")
    await _until(scene, "described more", _described(NODE, "1", *keys), rate, "1000")
    await scene.ask("a list is shorter", _altered(NODE, "1", ("log.cleanup.policy", SUBTRACT, "delete")))
    await _until(scene, "described then", _described(NODE, "1", *keys), "log.cleanup.policy", "compact")
    await scene.ask("all of one, read-only", _whole(NODE, "1", ("num.partitions", "3")))
    await scene.ask("all of one", _whole(NODE, "1", ("log.retention.ms", "100000000000")))
    await _until(scene, "described at last", _described(NODE, "1", *keys), "log.retention.ms", "100000000000")
    await scene.ask("all of all", _whole(NODE, "", ("log.retention.ms", "100000000000")))
    for name, key in (("1", "log.retention.ms"), ("", largest)):
        await scene.ask(f"deleted of {name or 'all'}", _altered(NODE, name, (key, DELETE, None)))
    # each deletion is a change of its own, and a broker shows the source of a value before the value
    await scene.ask("as before", _described(NODE, "1", largest, *keys), until=_is_reset)
    for label, change in {
        "a logger": ("no.such.logger", SET, "DEBUG"),
        "a logger deleted": ("no.such.logger", DELETE, None),
        "a logger appended": ("no.such.logger", APPEND, "DEBUG"),
    }.items():
        await scene.ask(label, _altered(LOGGER, "1", change))
    await scene.ask("loggers of another broker", _altered(LOGGER, "7", ("a", SET, "DEBUG")))
    await scene.ask("all loggers", _whole(LOGGER, "1", ("a", "DEBUG")))


async def security_settings_of_brokers(scene: Scene) -> None:
    """Settings of SASL and TLS, of the broker and of its listeners, and what DescribeConfigs returns for them."""
    mechanisms, prefix = "sasl.enabled.mechanisms", "listener.name.plaintext."
    await scene.ask("mechanisms", _altered(NODE, "1", (mechanisms, SET, "PLAIN")))
    await _until(scene, "described", _described(NODE, "1", mechanisms), mechanisms, "PLAIN")
    await scene.ask("one more", _altered(NODE, "1", (mechanisms, APPEND, "SCRAM-SHA-256")))
    await _until(scene, "both", _described(NODE, "1", mechanisms), mechanisms, "PLAIN,SCRAM-SHA-256")
    await scene.ask("a secret", _altered(NODE, "1", ("sasl.jaas.config", SET, "secret required;")))
    # Kafka checks the next change together with this one, and may refuse it while this one is being applied
    await scene.ask("the secret", _described(NODE, "1", "sasl.jaas.config"), until=_has_own_value)
    own = (prefix + mechanisms, SET, "PLAIN")
    secret = (prefix + "plain.sasl.jaas.config", SET, "secret required;")
    await scene.ask("of a listener", _altered(NODE, "1", own, secret))
    limit = prefix + "max.connections"
    await scene.ask("connections of all", _altered(NODE, "", (limit, SET, "1000")))
    await scene.ask("connections of one", _altered(NODE, "1", (limit, SET, "2000")))
    names = (mechanisms, "sasl.jaas.config", own[0], secret[0], limit, "sasl.kerberos.service.name")
    await _until(scene, "all of it", _described(NODE, "1", *names), limit, "2000")
    await _until(scene, "of all", _described(NODE, "", *names), limit, "1000")
    await scene.ask("reset of all", _altered(NODE, "", (limit, DELETE, None)))
    await scene.ask("reset", _whole(NODE, "1"))

    def is_reset(answer: Any) -> bool:
        values = {each.name: each.value for each in answer.results[0].configs}
        return len(values) == 3 and values[mechanisms] == "GSSAPI"

    await scene.ask("as before", _described(NODE, "1", *names), until=is_reset)


async def all_settings_of_a_broker(scene: Scene) -> None:
    """DescribeConfigs of a node: all names, types and defaults; values that its options set differ by purpose."""
    version, cls = scene.version("DescribeConfigs"), m.DescribeConfigsRequest
    more = {"include_documentation": True} if version >= 3 else {}
    request = cls([cls.DescribeConfigsResource(NODE, "1", None)], include_synonyms=True, **more)
    (result,) = (await scene.quietly(request, version)).results
    for config in result.configs:
        defaults = [synonym.value for synonym in config.synonyms if synonym.source == DEFAULT]
        facts = [config.read_only, config.is_sensitive, defaults]
        if version >= 3:
            facts += [config.config_type, bool(config.documentation)]
        scene.keep(config.name, {"facts": repr(facts)})


async def loggers(scene: Scene) -> None:
    """The levels of loggers (KIP-412): described, altered, and refused."""
    root = "root"
    described = _described(LOGGER, "1", root)

    async def look(label: str, level: str) -> None:
        await _until(scene, label, described, root, level)

    before = (await scene.quietly(described, scene.version("DescribeConfigs"))).results[0].configs[0].value
    for label, change in {
        "to INFO": (root, SET, "INFO"),
        "in small letters": (root, SET, "info"),
        "to nothing": (root, SET, ""),
        "deleted": (root, DELETE, None),
        "appended": (root, APPEND, "INFO"),
    }.items():
        await scene.ask(label, _altered(LOGGER, "1", change))
    await look("as INFO", "INFO")
    await scene.ask("one good, one bad", _altered(LOGGER, "1", (root, SET, "WARN"), ("x", SET, "WARN")))
    await scene.ask("only validated", _altered(LOGGER, "1", (root, SET, "WARN"), validate=True))
    await look("still INFO", "INFO")
    await scene.ask("to FATAL", _altered(LOGGER, "1", (root, SET, "FATAL")))
    await look("as FATAL", "FATAL")
    for name in ("", "x", "7"):
        await scene.ask(f"described for {name!r}", _described(LOGGER, name))
        await scene.ask(f"altered for {name!r}", _altered(LOGGER, name, (root, SET, "INFO")))
    await scene.quietly(_altered(LOGGER, "1", (root, SET, before)), scene.version("IncrementalAlterConfigs"))


async def settings_of_groups(scene: Scene) -> None:
    """The same for groups (KIP-848)."""
    group, timeout = scene.named("settings"), "consumer.session.timeout.ms"
    cases: dict[str, tuple[str, Changes]] = {
        "too short": (group, [(timeout, SET, "1")]),
        "too long": (group, [(timeout, SET, "10000000")]),
        "no number": (group, [(timeout, SET, "x")]),
        "unknown": (group, [("foo", SET, "x")]),
        "no name": ("", [(timeout, SET, "46000")]),
        "no list": (group, [(timeout, APPEND, "46000")]),
        "no reset": (group, [("share.auto.offset.reset", SET, "never")]),
        "no isolation": (group, [("share.isolation.level", SET, "none")]),
    }
    for label, (name, changes) in cases.items():
        await scene.ask(label, _altered(GROUP, name, *changes))
    await scene.ask("set", _altered(GROUP, group, (timeout, SET, "46000")))
    await _until(scene, "described", _described(GROUP, group, timeout), timeout, "46000")
    await scene.ask("all", _whole(GROUP, group, ("consumer.heartbeat.interval.ms", "6000")))
    keys = (
        timeout,
        "consumer.heartbeat.interval.ms",
        "share.isolation.level",
        "streams.num.standby.replicas",
    )
    await _until(scene, "described then", _described(GROUP, group, *keys), keys[1], "6000")
    await scene.ask("none", _whole(GROUP, group))
    await _until(scene, "described at last", _described(GROUP, group, *keys), keys[1], "5000")
