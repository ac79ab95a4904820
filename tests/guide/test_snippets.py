"""The names in the snippets: every block of Python compiles, and what it imports and calls exists."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from importlib.util import find_spec

import pytest

import asyncgroup
import asyncgroup.admin
import asyncgroup.broker
import asyncgroup.group
import asyncgroup.pulsar
import asyncgroup.pulsar_broker
import asyncgroup.security
import asyncgroup.spark
import asyncgroup.telemetry
import asyncgroup.testing
import asyncgroup.workqueue
from asyncgroup.group.health.health import Health
from asyncgroup.offsets import PartitionOffsets
from tests.guide.pages import PAGES, Snippet, page, snippets

SNIPPETS = snippets()
OBJECTS: dict[str, type] = {
    "admin": asyncgroup.admin.Admin,
    "group": asyncgroup.ConsumerGroup,
    "session": asyncgroup.Session,
    "claim": asyncgroup.Claim,
    "producer": asyncgroup.Producer,
    "consumer": asyncgroup.Consumer,
    "offsets": asyncgroup.OffsetManager,
    "place": PartitionOffsets,
    "record": asyncgroup.Record,
    "batch": asyncgroup.Batch,
    "queue": asyncgroup.workqueue.WorkQueue,
    "delivery": asyncgroup.workqueue.Delivery,
    "health()": Health,
}
"""The types of variables in the snippets and in the text."""

OF_PULSAR: dict[str, type] = {
    "client": asyncgroup.pulsar.PulsarClient,
    "producer": asyncgroup.pulsar.PulsarProducer,
    "consumer": asyncgroup.pulsar.PulsarTopicConsumer,
    "message": asyncgroup.pulsar.PulsarMessage,
    "record": asyncgroup.pulsar.PulsarMessage,
}

OF_PAGE: dict[str, dict[str, type]] = {"pulsar": OF_PULSAR, "testing-kit-pulsar": OF_PULSAR}
"""Those that have another type on a page, or are only there."""


def objects(page: str) -> dict[str, type]:
    """Return the types of variables on a page."""
    return {**OBJECTS, **OF_PAGE.get(page, {})}


THEIRS = ("from aiokafka import", "from confluent_kafka import", "import pulsar\n", "logging.LogRecord")
"""Blocks whose variables are objects of other packages."""

OPTIONAL = {"fastapi", "uvicorn"}
"""Packages of snippets that need not be installed; `test_in_production.py` has stand-ins for them."""

PROPERTIES = {
    ("group", "protocol"),
    ("group", "id"),
    ("group", "instance"),
    ("group", "consumer"),
    ("group", "version"),
    ("consumer", "session"),
    ("consumer", "heartbeat"),
    ("batch", "size"),
    ("offsets", "retention"),
    ("delivery", "timeout"),
    ("delivery", "report"),
    ("queue", "buffering"),
    ("queue", "backoff"),
    ("client", "conf"),
}
"""Parts of Kafka's property names, and of names of files."""


MODULES = (
    asyncgroup,
    asyncgroup.admin,
    asyncgroup.producer,
    asyncgroup.pulsar,
    asyncgroup.pulsar_broker,
    asyncgroup.spark,
    asyncgroup.security,
    asyncgroup.broker,
    asyncgroup.group,
    asyncgroup.telemetry,
    asyncgroup.testing,
    asyncgroup.workqueue,
)
OTHERS = {
    *("CancelledError", "Exception", "False", "None", "True"),
    *("Fetch", "PythonMicroBatchStreamBase", "ReportsSourceMetrics"),
    *("AdminClient", "ConsumerEventListener", "ConsumerRebalanceListener", "ConsumerRecord"),
    *("Config", "Consume", "ConsumeClaim", "Errors", "MarkMessage", "ResetOffset"),
    *(
        "Compression",
        "CompressionLevel",
        "Flush",
        "Idempotent",
        "Interceptors",
        "MaxMessageBytes",
        "Partitioner",
        "RequiredAcks",
        "Timeout",
        "Transaction",
    ),
    *("AbortTxn", "BeginTxn", "CommitTxn", "Reader", "TableView"),
    *("CommandRedeliverUnacknowledgedMessages", "ConsumerConfigurationData", "ProducerConfigurationData"),
    *("Ack", "Command", "Flow", "LookupTopic", "Producer", "Seek", "Send", "Subscribe"),
    *("ServerError", "ServiceNotReady", "TopicNotFound", "TopicTerminatedError"),
    *("Durable", "Exclusive", "ExclusiveWithFencing", "Failover", "NonDurable", "Shared", "WaitForExclusive"),
}
"""Names in the text that belong to Python, Kafka, Spark, another client or a snippet."""


def parse(snippet: Snippet) -> ast.Module:
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST
    tree = compile(snippet.code, snippet.name, "exec", flags)
    assert isinstance(tree, ast.Module)
    return tree


def has_names_of_others(name: str) -> bool:
    """Whether the first columns of a page's tables have the names of another client."""
    return name.startswith("from-") or name == "pulsar"


def has(cls: type, attribute: str) -> bool:
    """Whether objects of a class have this attribute: on the class, or assigned in `__init__`."""
    return hasattr(cls, attribute) or f"self.{attribute}" in inspect.getsource(cls.__init__)


def needs_an_optional_package(node: ast.Import | ast.ImportFrom) -> bool:
    """Whether it imports from a package that is in a snippet, but not among the test's dependencies."""
    names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
    packages = {name.partition(".")[0] for name in names}
    return any(find_spec(package) is None for package in packages & OPTIONAL)


def test_there_are_snippets() -> None:
    assert len(SNIPPETS) >= 25


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda snippet: snippet.name)
def test_imported_names_exist(snippet: Snippet) -> None:
    imports: list[ast.stmt] = [
        node
        for node in ast.walk(parse(snippet))
        if isinstance(node, ast.Import | ast.ImportFrom) and not needs_an_optional_package(node)
    ]
    exec(compile(ast.Module(imports, []), snippet.name, "exec"), {})


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda snippet: snippet.name)
def test_used_attributes_exist(snippet: Snippet) -> None:
    if any(text in snippet.code for text in THEIRS):
        return
    types = objects(snippet.page)
    for node in ast.walk(parse(snippet)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in types:
            assert has(types[node.value.id], node.attr), f"{node.value.id}.{node.attr}"


@pytest.mark.parametrize("name", PAGES)
def test_names_in_the_text_exist(name: str) -> None:
    """Attributes in the text, such as `claim.mark(…)`, `group.pause`, `await session.commit()`."""
    types = objects(name)
    for code in re.findall(r"`([^`]+)`", prose(name)):
        if code.startswith(("asyncgroup/", "tests/")):
            continue  # a path
        for variable, attribute in re.findall(r"(?<![\w.])([a-z]+(?:\(\))?)\.([a-z]\w*)", code):
            if variable in types and (variable, attribute) not in PROPERTIES:
                assert has(types[variable], attribute), f"{variable}.{attribute}"


@pytest.mark.parametrize("name", [name for name in PAGES if has_names_of_others(name)])
def test_arguments_in_the_tables_exist(name: str) -> None:
    """Keyword arguments of calls in the second column, such as `claim.batches(max_records=…)`."""
    cells = [line.split("|")[2] for line in page(name).splitlines() if line.count("|") >= 3]
    types, found = objects(name), 0
    for variable, attribute, arguments in re.findall(r"(\w+)\.(\w+)\(([^()]*)\)", "\n".join(cells)):
        if variable in types:
            known = inspect.signature(getattr(types[variable], attribute)).parameters
            named = re.findall(r"(\w+)=", arguments)
            assert set(named) <= set(known), f"{variable}.{attribute}({arguments})"
            found += len(named)
    assert found or name == "from-sarama"


def prose(name: str) -> str:
    """Return the text of a page without its blocks, and without the names of other clients in its tables."""
    text = re.sub(r"^```.*?^```$", "", page(name), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"^\|[^|]*\|", "|", text, flags=re.MULTILINE) if has_names_of_others(name) else text


@pytest.mark.parametrize("name", PAGES)
def test_classes_in_the_text_exist(name: str) -> None:
    for code in re.findall(r"`([^`]+)`", prose(name)):
        for cls in re.findall(r"(?<![\w.'\"])([A-Z][a-z]+[A-Za-z]*)\b(?!=)", code):
            assert cls in OTHERS or any(hasattr(module, cls) for module in MODULES), cls


@pytest.mark.parametrize("name", PAGES)
def test_arguments_of_classes_in_the_text_exist(name: str) -> None:
    """Such as `Tls(context=…)`, alone or within another call."""
    for code in re.findall(r"`([^`]+)`", prose(name)):
        for cls, arguments in re.findall(r"\b([A-Z]\w+)\(((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)", code):
            made = next((getattr(module, cls) for module in MODULES if hasattr(module, cls)), None)
            if made is not None:
                own = re.sub(r"\(.*\)", "()", arguments)  # without the arguments of calls within
                named = set(re.findall(r"(?:^|, )(\w+)=", own))
                if made in (asyncgroup.testing.KafkaServer, asyncgroup.broker.EmbeddedCluster):
                    made = asyncgroup.broker.ClusterOptions
                if made in (asyncgroup.testing.PulsarServer, asyncgroup.pulsar_broker.EmbeddedPulsar):
                    made = asyncgroup.pulsar_broker.PulsarOptions
                known = set(inspect.signature(made).parameters)
                if dataclasses.is_dataclass(made):  # its `__new__` may take any name, to say what is meant
                    known |= {each.name for each in dataclasses.fields(made)}
                assert named <= known, f"{cls}({own})"
