"""The generated tables of the guide: configuration keys, and the settings of other clients with their counterparts.

`python -m tests.guide.tables` writes them into the pages, between `<!-- table: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any, Final

import aiokafka

from asyncgroup.cli.app import ADMINISTRATION
from asyncgroup.config import ClientConfig, ConsumerConfig, ProducerConfig
from asyncgroup.log_events import LOG_EVENTS
from asyncgroup.properties.ignored import IGNORED, IGNORED_PREFIXES
from asyncgroup.properties.names import PROPERTIES, REST, SECURITY, UNSUPPORTED
from asyncgroup.properties.sarama_keys import SARAMA_KEYS
from asyncgroup.properties.suggestions import ARGUMENTS, PYTHON_ALIASES, PYTHON_NAMES
from asyncgroup.telemetry import METRICS
from tests.guide.pages import GUIDE
from tests.properties.test_suggestions import CONFLUENT, JAVA, LIBRDKAFKA

__all__ = ["TABLES", "table_of"]

CONFIGS: Final[tuple[type[ClientConfig], ...]] = (ClientConfig, ConsumerConfig, ProducerConfig)
INHERITED: Final = {field.name for field in fields(ClientConfig)}


# --- our keys ---------------------------------------------------------------------------------------------------------


def shown(key: str, value: object) -> str:
    """Return a default as a reader writes it: sizes in MiB and KiB, seconds without a fraction of 0."""
    if key.endswith(("_bytes", "_size")) and isinstance(value, int) and value % 1024 == 0:
        return f"{value >> 20} MiB" if value % (1 << 20) == 0 else f"{value >> 10} KiB"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else f"`{value!r}`"


def own_keys(cls: type[ClientConfig]) -> dict[str, object]:
    """Return the keys of a class with their defaults, without those of ClientConfig."""
    inherited = INHERITED if cls is not ClientConfig else set()
    return {field.name: field.default for field in fields(cls) if field.name not in inherited}


def key_table(cls: type[ClientConfig]) -> list[str]:
    """Return a table of the keys of `cls`, from the items of its docstring."""
    keys = own_keys(cls)
    items = re.findall(
        r"^- (.*?)(?=\n- |\n\n|\Z)", inspect.cleandoc(cls.__doc__ or ""), re.MULTILINE | re.DOTALL
    )
    texts = [" ".join(item.split()) for item in items]
    heads = [re.findall(r"(?:^|\. )((?:`\w+`(?:, | ))*`\w+`)(?=:| commits)", text) for text in texts]
    places = {key: n for n, found in enumerate(heads) for key in re.findall(r"\w+", " ".join(found))}
    for key in keys:
        places.setdefault(key, next((n for n, text in enumerate(texts) if f"`{key}`" in text), -1))
    rows = ["| key | default | |", "|---|---|---|"]
    for number, text in enumerate(texts):
        here = sorted((key for key in keys if places[key] == number), key=lambda key: text.find(f"`{key}`"))
        if here:
            defaults = ", ".join(shown(key, keys[key]) for key in here)
            meaning = re.sub(r"^(?:`\w+`, )*`\w+`: ", "", text)
            rows.append(
                f"| {', '.join(f'`{key}`' for key in here)} | {defaults} | {meaning[0].upper()}{meaning[1:]} |"
            )
    return rows


# --- metrics ----------------------------------------------------------------------------------------------------------


def metrics_table() -> list[str]:
    """Return a table of all metrics, as they are on a page of Prometheus."""
    rows = ["| metric | type | labels | |", "|---|---|---|---|"]
    for metric in METRICS.values():
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        only = " Only with `partitions=True`." if metric.per_partition else ""
        rows.append(f"| `{metric.full_name}` | {metric.kind} | {labels} | {metric.help}{only} |")
    return rows


# --- other clients' settings ------------------------------------------------------------------------------------------


def is_supported(name: str) -> bool:
    """Whether a property of Java's clients or librdkafka stands for something here."""
    return name in SECURITY or name in REST or any(name in names for names in PROPERTIES.values())


def counterpart(name: str) -> str:
    """Return the key or argument that a supported property stands for."""
    for cls, names in PROPERTIES.items():
        if name in names:
            unit = (
                ", in seconds" if name.endswith(".ms") else ", in bytes" if name.endswith(".kbytes") else ""
            )
            where = "" if cls == "ClientConfig" else f" ({cls})"
            key = " and ".join(f"`{key}`" for key in (names[name].key, names[name].also) if key)
            return f"{key}{unit}{where}"
    return ARGUMENTS[REST[name].replace(".", "_")] if name in REST else f"`security={SECURITY[name]}`"


def refusal(name: str) -> str:
    """Return the cells of an unsupported property: the values that leave its feature off, and what to use instead."""
    allowed = " or ".join(f"`{word}`" for word in UNSUPPORTED[name].words if word)
    return f"{allowed} | {UNSUPPORTED[name].because}"


def reason(name: str) -> str:
    """Return why a property has no effect."""
    return IGNORED.get(name) or next(
        why for prefix, why in IGNORED_PREFIXES.items() if name.startswith(prefix)
    )


def of_property(name: str) -> str:
    """Return what a property is here, or why there is nothing."""
    if is_supported(name):
        return counterpart(name)
    return f"none: {UNSUPPORTED[name].because}" if name in UNSUPPORTED else reason(name)


AIOKAFKA_NOTES: Final = {
    "acks": "`acks`, default `'all'` (aiokafka's is 1)",
    "enable_auto_commit": "`auto_commit`: commits what is marked, not what was delivered",
    "linger_ms": "`linger`, default 5 ms, but not for records of `send`",
    "max_poll_interval_ms": "`max_poll_interval`: the limit for one record, not for a poll; see also `claim.renew()`",
    "max_poll_records": "`claim.batches(max_records=…)`",
    "partition_assignment_strategy": "`assignors`, default `range` (aiokafka's is roundrobin)",
    "partitioner": "`partitioner`: a name, or a function `(key, partitions) -> partition`",
}
"""Rows of aiokafka's arguments for which a property's row is not enough."""


def of_python(cls: type[ClientConfig], name: str, value: object) -> str:
    """Return what an argument of aiokafka's constructors is here, with its default and ours if both have one."""
    if name in AIOKAFKA_NOTES:
        return AIOKAFKA_NOTES[name]
    if name in PYTHON_NAMES:
        return PYTHON_NAMES[name]
    if name in ARGUMENTS:
        return ARGUMENTS[name]
    keys = {field.name: field.default for field in fields(cls)}
    for candidate in (PYTHON_ALIASES.get(name, name), name.replace("_", ".")):
        for names in PROPERTIES.values():
            if candidate in names and names[candidate].key in keys:
                key, also = names[candidate].key, names[candidate].also
                key = also if also and name.startswith(also) else key
                ours = getattr(cls(), f"effective_{key}", keys[key])  # where None stands for a value
                theirs = value / 1000 if isinstance(value, int) and name.endswith("_ms") else value
                same = isinstance(value, int | str) and ours == theirs
                return f"`{key}`" + ("" if same else f", default {shown(key, ours)}")
        if any(
            candidate in known for known in (*PROPERTIES.values(), REST, SECURITY, UNSUPPORTED, IGNORED)
        ) or any(candidate.startswith(prefix) for prefix in IGNORED_PREFIXES):
            return of_property(candidate)
    return f"`{name}`, default {shown(name, keys[name])}"


def grouped(names: Iterable[str], meaning: Callable[[str], str]) -> list[str]:
    """Return table rows, with names of the same meaning in one row, and names of a known prefix as that prefix."""
    found: dict[str, list[str]] = {}
    for name in sorted(set(names)):
        prefix = next(
            (each for each in IGNORED_PREFIXES if name.startswith(each) and name not in IGNORED), ""
        )
        shown_name = f"`{prefix}…`" if prefix and meaning is reason else f"`{name}`"
        row = found.setdefault(meaning(name), [])
        if shown_name not in row:
            row.append(shown_name)
    return [f"| {', '.join(row)} | {text} |" for text, row in found.items()]


def supported_table(names: Iterable[str]) -> list[str]:
    return ["| property | here |", "|---|---|", *grouped(filter(is_supported, names), counterpart)]


def unsupported_table(names: Iterable[str]) -> list[str]:
    refused = [name for name in names if not is_supported(name) and name in UNSUPPORTED]
    return ["| property | allowed | instead |", "|---|---|---|", *grouped(refused, refusal)]


def ignored_table(names: Iterable[str]) -> list[str]:
    ignored = [name for name in names if not is_supported(name) and name not in UNSUPPORTED]
    return ["| property | why |", "|---|---|", *grouped(ignored, reason)]


def aiokafka_table(constructor: Any, cls: type[ClientConfig]) -> list[str]:
    rows = ["| argument (default) | here |", "|---|---|"]
    for name, parameter in inspect.signature(constructor).parameters.items():
        default = parameter.default
        simple = isinstance(default, int | str) and not (isinstance(default, str) and "aiokafka" in default)
        stated = f" ({default!r})" if simple else ""
        rows.append(f"| `{name}`{stated} | {of_python(cls, name, default)} |")
    return rows


def sarama_table() -> list[str]:
    rows = ["| sarama | here | |", "|---|---|---|"]
    for key, (place, why) in SARAMA_KEYS.items():
        rows.append(f"| `{key}` | {f'`{place}`' if place else 'none'} | {why} |")
    return rows


LIBRDKAFKA_NAMES: Final = [*LIBRDKAFKA.split(), *CONFLUENT.split()]

# --- columns of the command line ----------------------------------------------------------------------------------------


def columns_table() -> list[str]:
    """Return the keys of each administrative command's rows; those that a table has with --wide only are in parentheses."""
    rows = ["| command | keys |", "|---|---|"]
    for subject, module in ADMINISTRATION.items():
        for action, columns in module.COLUMNS.items():
            keys = (f"(`{each.key}`)" if each.is_wide else f"`{each.key}`" for each in columns)
            rows.append(f"| `{subject} {action}` | {', '.join(keys)} |")
    return rows


TABLES: Final[Mapping[str, Callable[[], list[str]]]] = {
    "metrics": metrics_table,
    "log_events": lambda: [
        "| event | |",
        "|---|---|",
        *(f"| `{name}` | {text} |" for name, text in LOG_EVENTS.items()),
    ],
    "ClientConfig": lambda: key_table(ClientConfig),
    "ConsumerConfig": lambda: key_table(ConsumerConfig),
    "ProducerConfig": lambda: key_table(ProducerConfig),
    "AIOKafkaConsumer": lambda: aiokafka_table(aiokafka.AIOKafkaConsumer, ConsumerConfig),
    "AIOKafkaProducer": lambda: aiokafka_table(aiokafka.AIOKafkaProducer, ProducerConfig),
    "sarama": sarama_table,
    "java": lambda: supported_table(JAVA.split()),
    "java_unsupported": lambda: unsupported_table(JAVA.split()),
    "java_ignored": lambda: ignored_table(JAVA.split()),
    "librdkafka": lambda: supported_table(LIBRDKAFKA_NAMES),
    "librdkafka_unsupported": lambda: unsupported_table(LIBRDKAFKA_NAMES),
    "librdkafka_ignored": lambda: ignored_table(LIBRDKAFKA_NAMES),
    "columns": columns_table,
}
"""The tables by name."""

PLACE: Final = re.compile(r"(<!-- table: (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def table_of(name: str) -> str:
    """Return the generated table, with an empty line before and after it, as Markdown requires after a comment."""
    return "\n" + "\n".join(TABLES[name]()) + "\n\n"


def main() -> None:
    """Write all tables into their pages."""
    for page in sorted(GUIDE.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        page.write_text(
            PLACE.sub(lambda found: found[1] + table_of(found[2]) + found[4], text), encoding="utf-8"
        )


if __name__ == "__main__":
    main()
