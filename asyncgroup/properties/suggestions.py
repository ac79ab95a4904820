"""Suggestions for unknown configuration keys: names of other clients, arguments of other functions, typing errors.

The names come from the constructors of aiokafka 0.14 and kafka-python 3.0, librdkafka's `CONFIGURATION.md` (2.16) and
Java's configuration classes (4.3). Most Python names are Java's with underscores and are found in `names.py` and
`ignored.py`; the others are listed here. A key with a different meaning is never suggested.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from asyncgroup.properties.ignored import IGNORED, IGNORED_PREFIXES
from asyncgroup.properties.names import PROPERTIES, REST, SECURITY, UNSUPPORTED, Property
from asyncgroup.properties.sarama_keys import SARAMA_KEYS

__all__ = [
    "ARGUMENTS",
    "PYTHON_ALIASES",
    "PYTHON_NAMES",
    "Keys",
    "close_matches",
    "suggest_key",
    "suggest_property",
]

_NO_SUCH_KEY: Final = "there is no such key"

Keys = Mapping[str, Collection[str]]
"""Keys of each configuration class, by class name."""

ARGUMENTS: Final[Mapping[str, str]] = {
    "bootstrap_servers": "the first argument of ConsumerGroup, Consumer, Producer and Cluster",
    "servers": "the first argument of ConsumerGroup, Consumer, Producer and Cluster",
    "group_id": "an argument of ConsumerGroup and OffsetManager",
    "group": "an argument of ConsumerGroup and OffsetManager",
    "topics": "an argument of group.run and group.consume",
    "topic": "an argument of group.run, group.consume and producer.send",
    "pattern": "an argument of group.run and group.consume, as a compiled pattern",
    "handler": "an argument of group.run and group.consume",
    "hooks": "an argument of ConsumerGroup, Consumer, Producer and Cluster",
    "interceptors": "an argument of ConsumerGroup, Consumer and Producer",
    "memory": "an argument of Producer",
    "initial_sequence_id": "an argument of Producer",
    "max_records": "an argument of claim.batches",
    "max_bytes": "an argument of claim.batches",
    "max_wait": "an argument of claim.batches",
    "listener": "Handler.on_assigned, on_revoked and on_lost are called at a rebalance",
    "on_assign": "Handler.on_assigned is called at a rebalance",
    "on_revoke": "Handler.on_revoked is called at a rebalance",
    "on_lost": "a method of the Handler",
}
"""Arguments of other functions, by name."""

PYTHON_ALIASES: Final[Mapping[str, str]] = {
    "instance_id": "group.instance.id",
    "rebalance_timeout_ms": "max.poll.interval.ms",
    "max_batch_size": "batch.size",
    "compression": "compression.type",
    "ssl_check_hostname": "ssl.endpoint.identification.algorithm",
    "ssl_cafile": "ssl.ca.location",
    "ssl_certfile": "ssl.certificate.location",
    "ssl_keyfile": "ssl.key.location",
    "ssl_password": "ssl.key.password",
    "ssl_crlfile": "ssl.crl.location",
    "ssl_ciphers": "ssl.cipher.suites",
    "sasl_plain_username": "sasl.username",
    "sasl_plain_password": "sasl.password",
    "sasl_kerberos_name": "sasl.kerberos.principal",
    "sasl_kerberos_domain_name": "sasl.kerberos.principal",
    "default_offset_commit_callback": "offset_commit_cb",
    "metrics_enabled": "metric.reporters",
    "metric_group_prefix": "metric.reporters",
}
"""Names of aiokafka and kafka-python, and shortened ones, that stand for a Kafka property of another name."""

PYTHON_NAMES: Final[Mapping[str, str]] = {
    "loop": "leave it out: the running event loop is used",
    "selector": "leave it out: the running event loop is used",
    "consumer_timeout_ms": "iterators wait until the claim ends; use asyncio.timeout to limit the time",
    "api_version": IGNORED["api.version.request"],
    "api_version_auto_timeout_ms": IGNORED["api.version.request"],
    "bootstrap_timeout_ms": "every bootstrap server is tried once, connect_timeout limits each connection",
    "ssl_context": "pass security=Security(tls=Tls(context=…))",
    "sasl_oauth_token_provider": "pass security=Security(sasl=OAuthBearer(token_provider=…))",
    "enable_incremental_fetch_sessions": "fetch sessions are always used (KIP-227)",
    "socket_options": "pass connector, an async function (host, port) -> socket",
    "proxy_url": "pass connector, an async function (host, port) -> socket",
    "socks5_proxy": "pass connector, an async function (host, port) -> socket",
    "kafka_client": "pass a Cluster instead of the bootstrap servers to share connections",
}
"""aiokafka's and kafka-python's names without a Kafka property."""

_TIME_UNITS: Final = frozenset({"ms", "millis", "milliseconds", "s", "sec", "secs", "seconds"})


def suggest_key(cls: str, key: str, value: object, keys: Keys) -> str:
    """Return the text that suggests a replacement for `key`, which the configuration class `cls` does not have."""
    # first: a name that another client has is no typing error
    found = _known_elsewhere(cls, key, value, keys)
    if found is not None:
        return f"{_NO_SUCH_KEY}; {found}"
    if near := close_matches(key, keys[cls]):
        # `session_timeout_ms` means the key, and its value would be wrong by a factor of 1000
        seconds = ", in seconds" if _TIME_UNITS.intersection(_split(key)) else ""
        return f"{_NO_SUCH_KEY}; did you mean {' or '.join(near)}{seconds}?"
    # last: a typing error in a name of something else, nearest first
    ours = {key for own in keys.values() for key in own}
    for other in (
        *close_matches(key, ours),
        *close_matches(key, ARGUMENTS),
        *close_matches(key, _foreign_names()),
    ):
        if (found := _known_elsewhere(cls, other, None, keys)) is not None:
            return f"{_NO_SUCH_KEY}; if {other} is meant: {found}"
    return _NO_SUCH_KEY


def suggest_property(cls: str, name: str, known: Iterable[str], keys: Keys) -> str:
    """Return the text that suggests a replacement for `name`, a property unknown to `cls.from_properties`."""
    known = list(known)
    # `group_id` as users of other Python clients write it
    spelled = name.replace("_", ".")
    if spelled in known:
        return f"{_NO_SUCH_KEY}; did you mean {spelled}?"
    if name in keys[cls]:
        return f"{_NO_SUCH_KEY}; {name} is a keyword argument: from_properties(properties, {name}=…)"
    if near := close_matches(name, known):
        return f"{_NO_SUCH_KEY}; did you mean {' or '.join(near)}?"
    found = _known_elsewhere(cls, name, None, keys)
    return _NO_SUCH_KEY if found is None else f"{_NO_SUCH_KEY}; {found}"


# --- names known elsewhere ------------------------------------------------------------------------------------------


def _known_elsewhere(cls: str, key: str, value: object, keys: Keys) -> str | None:
    """Return what a key means elsewhere: in another class, another function or another client."""
    if classes := [other for other, own in keys.items() if key in own]:
        return f"it is a key of {' and '.join(classes)}, this is a {cls}"
    if key in ARGUMENTS:
        return ARGUMENTS[key]
    if key in PYTHON_NAMES:
        return PYTHON_NAMES[key]
    for name in (PYTHON_ALIASES.get(key, key), key.replace("_", ".")):
        if (found := _known_to_kafka(cls, name, value, key)) is not None:
            return found
    if key in SARAMA_KEYS:
        place, why = SARAMA_KEYS[key]
        return f"did you mean {place}?" if place else why
    return None


def _known_to_kafka(cls: str, name: str, value: object, key: str) -> str | None:
    """Return what a Kafka property name (with dots) stands for, or None if it is unknown; `key` was given for it."""
    for other in (cls, "ClientConfig", "ConsumerConfig", "ProducerConfig"):
        if name in PROPERTIES.get(other, {}):
            prop = PROPERTIES[other][name]
            # one property for two keys: the one whose name was given
            if prop.also and key.startswith(prop.also):
                prop = Property(prop.also, prop.read)
            return _as_key(cls, other, name, prop, value)
    if name in REST:
        return ARGUMENTS[REST[name].replace(".", "_")]
    if name in SECURITY:
        return f"pass security={SECURITY[name]}"
    if name in UNSUPPORTED:
        return UNSUPPORTED[name].because
    if name in IGNORED:
        return IGNORED[name]
    return next((why for prefix, why in IGNORED_PREFIXES.items() if name.startswith(prefix)), None)


def _as_key(cls: str, other: str, name: str, prop: Property, value: object) -> str:
    """Return the key for a property, with the value converted to the key's unit if it can be parsed."""
    shown = prop.key
    if value is not None:
        # a value that cannot be read is left out: the name is what matters
        with contextlib.suppress(ValueError):
            shown = f"{prop.key}={prop.read(value)!r}"
    unit = "seconds" if name.endswith(".ms") else "bytes" if name.endswith(".kbytes") else ""
    if other in (cls, "ClientConfig"):
        return f"did you mean {shown}{', in ' if unit else ''}{unit}?"
    return f"{shown}{f' ({unit})' if unit else ''} is a key of {other}, this is a {cls}"


def _foreign_names() -> Iterable[str]:
    yield from PYTHON_NAMES
    yield from PYTHON_ALIASES
    for names in (*PROPERTIES.values(), REST, SECURITY, UNSUPPORTED, IGNORED):
        for name in names:
            yield name
            yield name.replace(".", "_")


# --- typing errors ----------------------------------------------------------------------------------------------------


def close_matches(key: str, known: Iterable[str]) -> list[str]:
    """Return the names in `known` that differ from `key` by the fewest typing errors, sorted, at most three.

    Names are compared word by word: as a whole, `fetch_min_wait` is close to `fetch_max_wait`, which means something
    else.
    """
    words = _words(key)
    found = {name: errors for name in known if (errors := _typing_errors(words, _words(name))) is not None}
    least = min(found.values(), default=0)
    return sorted(name for name, errors in found.items() if errors == least)[:3]


def _words(name: str) -> list[str]:
    """Split a name into words, without a unit of time: `sessionTimeoutMs` gives session, timeout."""
    return [word for word in _split(name) if word and word not in _TIME_UNITS]


def _split(name: str) -> list[str]:
    return re.split(r"[\s._-]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).lower())


def _typing_errors(one: list[str], other: list[str]) -> int | None:
    """Return the number of typing errors between two names, or None if they are too different."""
    # the same letters, split into other words
    if "".join(one) == "".join(other):
        return 0
    if len(one) != len(other):
        return None
    left, right = list(one), list(other)
    for word in one:  # a different order of words is not an error
        if word in right:
            left.remove(word)
            right.remove(word)
    # what is left is compared in order
    errors = [_distance(*pair) for pair in zip(left, right, strict=True)]
    close = [
        error <= (2 if len(word) >= 8 else 1)
        and (min(len(word), len(said)) >= 4 or {len(word), len(said)} == {3, 4})
        for error, word, said in zip(errors, right, left, strict=True)
    ]
    return sum(errors) if all(close) and len(errors) < max(2, len(one)) else None


def _distance(one: str, other: str) -> int:
    """Return the Damerau-Levenshtein distance: letters omitted, added, changed, and neighbors swapped."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        older, before, row = before, row, [i, *[0] * len(other)]
        for j, b in enumerate(other, 1):
            row[j] = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (a != b))
            if i > 1 and j > 1 and a == other[j - 2] and one[i - 2] == b:
                row[j] = min(row[j], older[j - 2] + 1)
    return row[-1]
