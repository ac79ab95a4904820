"""Run the guide's examples of tests with an embedded Pulsar, unchanged, in a pytest process of their own."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from asyncgroup.pulsar_broker import EmbeddedPulsar
from asyncgroup.testing.kit.pulsar_options import PulsarMarkerOptions
from tests.guide.pages import page, snippet
from tests.testing.suites import run_suite

PAGE = "testing-kit-pulsar"


def marker_examples() -> list[dict[str, Any]]:
    """Return the arguments of the marker's table, each with the brokers and the topic that it needs.

    The topics are also those of the docstring of `EmbeddedPulsar`.
    """
    table = re.search(r"^\| `@pytest\.mark\.pulsar\(…\)` .*\n((?:\|.*\n)+)", page(PAGE), re.MULTILINE)
    assert table is not None
    found: list[dict[str, Any]] = []
    for row in table[1].splitlines()[1:]:
        names, text = re.findall(r"`(\w+)`", row.split("|")[1]), row.split("|")[2]
        for code in re.findall(r"`([^`]+)`", text):
            if matched := re.fullmatch(r"(\w+)=(.+)", code):
                found.append({matched[1]: ast.literal_eval(matched[2])})
            elif code[0] in '"[{':
                found.append({names[0]: ast.literal_eval(code.replace(", …]", "]"))})
                if names == ["topics"]:
                    assert code in re.sub(r"\s+", " ", EmbeddedPulsar.__doc__ or "")
                elif names == ["faults"]:
                    found[-1]["faults"][0]["optional"] = True  # no client sends a request
    return [{"brokers": 2, "topics": "orders", **example} for example in found]


@pytest.mark.virtual
async def test_the_examples_of_the_markers_table() -> None:
    """Each makes an EmbeddedPulsar, with its topics, messages and faults."""
    examples = marker_examples()
    assert len(examples) >= 9
    with_messages = 0
    for example in examples:
        options = PulsarMarkerOptions.parse({**example, "admin": False})
        async with EmbeddedPulsar(options.pulsar) as pulsar:
            options.apply_faults(pulsar)
            with_messages += bool(pulsar.messages("orders"))
    assert with_messages == 1


def test_the_examples(tmp_path: Path) -> None:
    tests = "\n".join(
        snippet(PAGE, mentioned)
        for mentioned in ("import pulsar\n", "WorkQueue", "client.transaction", "expire_token")
    )
    done = run_suite(tmp_path, tests)
    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout
