"""What an unknown configuration key stands for: the names of other clients, arguments given elsewhere, typing errors.

The names come from the constructors of aiokafka 0.14 and kafka-python 3.0, librdkafka's `CONFIGURATION.md` (2.16) and
Java's configuration classes (4.3). A Python name is mostly Java's with underscores, so `property_names` and
`ignored_properties` answer for it; the others are here. A name with another meaning is never suggested.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from asyncgroup.ignored_properties import IGNORED, IGNORED_PREFIXES
from asyncgroup.property_names import BY_CLASS, REFUSED, REST, SECURITY, Property
from asyncgroup.sarama_keys import SARAMA_KEYS

__all__ = ["ARGUMENTS", "PYTHON_ALIASES", "PYTHON_NAMES", "Keys", "suggest_key", "suggest_property", "typos"]

NO_KEY: Final = "there is no such key"

Keys = Mapping[str, Collection[str]]
"""The keys of each configuration class, by the class's name."""

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
    "interceptors": "an argument of ConsumerGroup and Consumer",
    "max_records": "an argument of claim.batches",
    "max_bytes": "an argument of claim.batches",
    "max_wait": "an argument of claim.batches",
    "listener": "Handler.setup, on_revoked and on_lost are called at a rebalance",
    "on_assign": "Handler.setup is called at a rebalance",
    "on_revoke": "Handler.on_revoked is called at a rebalance",
    "on_lost": "a method of the Handler",
}
"""Names of arguments that other functions take."""

_KERBEROS: Final = IGNORED_PREFIXES["sasl.kerberos."]
_METRICS: Final = IGNORED_PREFIXES["metrics."]

PYTHON_ALIASES: Final[Mapping[str, str]] = {
    "rebalance_timeout_ms": "max.poll.interval.ms",
    "max_batch_size": "batch.size",
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
"""aiokafka's and kafka-python's spelling of a property that has the same place here."""

PYTHON_NAMES: Final[Mapping[str, str]] = {
    "loop": "leave it out: the running event loop is used",
    "selector": "leave it out: the running event loop is used",
    "consumer_timeout_ms": "iterators wait until the claim ends; use asyncio.timeout for a limit",
    "api_version": IGNORED["api.version.request"],
    "api_version_auto_timeout_ms": IGNORED["api.version.request"],
    "bootstrap_timeout_ms": "every bootstrap server is asked once, connect_timeout limits each connection",
    "ssl_context": "give security=Security(tls=Tls(context=…))",
    "sasl_oauth_token_provider": "give security=Security(sasl=OAuthBearer(token_provider=…))",
    "enable_incremental_fetch_sessions": "fetch sessions are always used (KIP-227)",
    "socket_options": "give connector, an async function (host, port) -> socket",
    "proxy_url": "give connector, an async function (host, port) -> socket",
    "socks5_proxy": "give connector, an async function (host, port) -> socket",
    "kafka_client": "give a Cluster in place of the bootstrap servers to share connections",
}
"""aiokafka's and kafka-python's names that Kafka has no property for."""

_TIME_UNITS: Final = frozenset({"ms", "millis", "milliseconds", "s", "sec", "secs", "seconds"})


def suggest_key(cls: str, key: str, value: object, keys: Keys) -> str:
    """What stands in place of `key`, which the configuration class `cls` does not have."""
    found = _known_elsewhere(cls, key, value, keys)
    if found is not None:
        return f"{NO_KEY}; {found}"
    if near := typos(key, keys[cls]):
        seconds = ", in seconds" if _TIME_UNITS.intersection(_split(key)) else ""
        return f"{NO_KEY}; did you mean {' or '.join(near)}{seconds}?"
    ours = {key for own in keys.values() for key in own}
    for other in (*typos(key, ours), *typos(key, ARGUMENTS), *typos(key, _foreign())):
        if (found := _known_elsewhere(cls, other, None, keys)) is not None:
            return f"{NO_KEY}; if {other} is meant: {found}"
    return NO_KEY


def suggest_property(cls: str, name: str, known: Iterable[str], keys: Keys) -> str:
    """What stands in place of the property `name`, which `cls.from_properties` does not take."""
    known = list(known)
    spelled = name.replace("_", ".")
    if spelled in known:
        return f"{NO_KEY}; did you mean {spelled}?"
    if name in keys[cls]:
        return f"{NO_KEY}; it is a key of ours: from_properties(properties, {name}=…)"
    if near := typos(name, known):
        return f"{NO_KEY}; did you mean {' or '.join(near)}?"
    found = _known_elsewhere(cls, name, None, keys)
    return NO_KEY if found is None else f"{NO_KEY}; {found}"


# --- names known elsewhere ------------------------------------------------------------------------------------------


def _known_elsewhere(cls: str, key: str, value: object, keys: Keys) -> str | None:
    """What a name is that is known, but not as a key of `cls`."""
    if owners := [owner for owner, own in keys.items() if key in own]:
        return f"it is a key of {' and '.join(owners)}, this is a {cls}"
    if key in ARGUMENTS:
        return ARGUMENTS[key]
    if key in PYTHON_NAMES:
        return PYTHON_NAMES[key]
    for name in (PYTHON_ALIASES.get(key, key), key.replace("_", ".")):
        if (found := _kafkas(cls, name, value)) is not None:
            return found
    if key in SARAMA_KEYS:
        place, why = SARAMA_KEYS[key]
        return f"did you mean {place}?" if place else why
    return None


def _kafkas(cls: str, name: str, value: object) -> str | None:
    """What a name of Kafka's, with dots, stands for."""
    for owner in (cls, "ClientConfig", "ConsumerConfig", "ProducerConfig"):
        if name in BY_CLASS.get(owner, {}):
            return _as_key(cls, owner, name, BY_CLASS[owner][name], value)
    if name in REST:
        return ARGUMENTS[REST[name].replace(".", "_")]
    if name in SECURITY:
        return f"give security={SECURITY[name]}"
    if name in REFUSED:
        return REFUSED[name].because
    if name in IGNORED:
        return IGNORED[name]
    return next((why for prefix, why in IGNORED_PREFIXES.items() if name.startswith(prefix)), None)


def _as_key(cls: str, owner: str, name: str, prop: Property, value: object) -> str:
    """The key for a property, with the value in our unit where there is one that can be read."""
    shown = prop.key
    if value is not None:
        with contextlib.suppress(ValueError):
            shown = f"{prop.key}={prop.read(value)!r}"
    unit = ", in seconds" if name.endswith(".ms") else ", in bytes" if name.endswith(".kbytes") else ""
    where = "" if owner in (cls, "ClientConfig") else f" in {owner}, this is a {cls}"
    return f"did you mean {shown}{unit}{where}?"


def _foreign() -> Iterable[str]:
    yield from PYTHON_NAMES
    yield from PYTHON_ALIASES
    for names in (*BY_CLASS.values(), REST, SECURITY, REFUSED, IGNORED):
        for name in names:
            yield name
            yield name.replace(".", "_")


# --- typing errors ----------------------------------------------------------------------------------------------------


def typos(key: str, known: Iterable[str]) -> list[str]:
    """Those of `known` of which `key` may be a typing error, the nearest first, at most three.

    Word by word: as a whole `fetch_min_wait` is near to `fetch_max_wait`, and means something else.
    """
    words = _words(key)
    found = {name: errors for name in known if (errors := _errors(words, _words(name))) is not None}
    least = min(found.values(), default=0)
    return sorted(name for name, errors in found.items() if errors == least)[:3]


def _words(name: str) -> list[str]:
    """The words of a name without its unit of time: `sessionTimeoutMs` is session, timeout."""
    return [word for word in _split(name) if word and word not in _TIME_UNITS]


def _split(name: str) -> list[str]:
    return re.split(r"[\s._-]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).lower())


def _errors(one: list[str], other: list[str]) -> int | None:
    """How many typing errors are between two names, None if they are two names."""
    if "".join(one) == "".join(other):
        return 0
    if len(one) != len(other):
        return None
    left, right = list(one), list(other)
    for word in one:  # another order of words does not count as an error
        if word in right:
            left.remove(word)
            right.remove(word)
    errors = [_distance(*pair) for pair in zip(left, right, strict=True)]
    close = [
        error <= (2 if len(word) >= 8 else 1)
        and (min(len(word), len(said)) >= 4 or {len(word), len(said)} == {3, 4})
        for error, word, said in zip(errors, right, left, strict=True)
    ]
    return sum(errors) if all(close) and len(errors) < max(2, len(one)) else None


def _distance(one: str, other: str) -> int:
    """Damerau's and Levenshtein's: letters left out, added, changed, and neighbours exchanged."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        older, before, row = before, row, [i, *[0] * len(other)]
        for j, b in enumerate(other, 1):
            row[j] = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (a != b))
            if i > 1 and j > 1 and a == other[j - 2] and one[i - 2] == b:
                row[j] = min(row[j], older[j - 2] + 1)
    return row[-1]
