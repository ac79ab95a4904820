"""The Grafana dashboard and the alert rules: every metric and label in them exists, and is asked for as its type allows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import pytest
import yaml

from asyncgroup.telemetry import METRICS, Metric

DASHBOARD: dict[str, Any] = json.loads(
    (files("asyncgroup.telemetry") / "grafana_dashboard.json").read_text("utf-8")
)
RULES: dict[str, Any] = yaml.safe_load(
    (files("asyncgroup.telemetry") / "alert_rules.yaml").read_text("utf-8")
)

SERIES = re.compile(r"asyncgroup_(\w+)(?:\{([^}]*)\})?(\[[^]]+\])?")
OF_COUNTERS = ("rate(", "increase(")
NEW_SERIES = re.compile(r" or sum by \(([^)]*)\) \((\w+) unless (\w+) offset 10m\) > 0$")
"""The second half of an alert on a counter that begins with its first event: `increase` is 0 there."""
VARIABLES = {"$__rate_interval", "$datasource", "$group", "$topic"}


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def rules() -> list[dict[str, Any]]:
    return [rule for group in RULES["groups"] for rule in group["rules"]]


def expressions() -> list[str]:
    found = [target["expr"] for panel in panels() for target in panel["targets"]]
    return found + [rule["expr"] for rule in rules()]


def series(text: str) -> Iterator[tuple[Metric, str, set[str], str]]:
    """Return for each series in a query its metric, its suffix, the labels it selects by, and what stands before it."""
    for match in SERIES.finditer(text):
        name, selector = match[1], match[2] or ""
        suffix = next(
            (end for end in ("_bucket", "_sum", "_count") if name not in METRICS and name.endswith(end)), ""
        )
        labels = {part.split("=")[0].rstrip("!") for part in selector.split(",") if part}
        yield METRICS[name.removesuffix(suffix)], suffix, labels, text[: match.start()]


def test_queries_use_metrics_labels_and_types_as_they_are() -> None:
    assert len(expressions()) > 35
    for expression in expressions():
        found = list(series(NEW_SERIES.sub("", expression)))
        assert found, expression
        for metric, suffix, labels, before in found:
            assert labels <= set(metric.labels), expression
            assert (suffix == "_bucket") == (metric.kind == "histogram"), expression
            assert before.endswith(OF_COUNTERS) == (metric.kind in ("counter", "histogram")), expression
            assert metric.kind != "histogram" or "histogram_quantile(" in before
            for by in re.findall(r"by \(([^)]*)\)", expression):
                assert set(by.split(", ")) <= {*metric.labels, "le"}, expression
                assert ("le" in by.split(", ")) == (metric.kind == "histogram"), expression


def test_an_alert_on_single_events_knows_the_first_one() -> None:
    """Found by a review: the series of an error begins at 1, so that a single failure was never alerted."""
    single = [rule["expr"] for rule in rules() if re.search(r"increase\(\w+\[10m\]\)\) > 0", rule["expr"])]
    assert len(single) == 5
    for expression in single:
        new, counted = (
            NEW_SERIES.search(expression),
            re.match(r"sum by \(([^)]*)\) \(increase\((\w+)", expression),
        )
        assert new is not None
        assert counted is not None
        assert (new[1], new[2], new[3]) == (counted[1], counted[2], counted[2])


def test_legends_have_labels_of_their_query() -> None:
    for panel in panels():
        for target in panel["targets"]:
            by = re.search(r"by \(([^)]*)\)", target["expr"])
            known = set(by[1].split(", ")) if by else {"group", "instance"}
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= known, target
    for rule in rules():
        by = re.search(r"by \(([^)]*)\)", rule["expr"])
        assert by is not None
        texts = " ".join(rule["annotations"].values())
        assert set(re.findall(r"\$labels\.(\w+)", texts)) <= set(by[1].split(", ")), rule["alert"]


def test_the_dashboard_has_its_variables_and_no_overlapping_panels() -> None:
    text = json.dumps(DASHBOARD)
    assert set(re.findall(r"\$\w+", text.replace("${datasource}", "$datasource"))) - {"$__all"} == VARIABLES
    names = [variable["name"] for variable in DASHBOARD["templating"]["list"]]
    assert names == ["datasource", "group", "topic"]
    for variable in DASHBOARD["templating"]["list"][1:]:
        for metric, _, labels, _ in series(variable["definition"]):
            assert {variable["name"], *labels} <= set(metric.labels)
    cells: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        area = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not area & cells, panel["title"]
        assert max(x for x, _ in area) < 24
        cells |= area
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_an_alert_says_what_it_is_and_how_bad(rule: dict[str, Any]) -> None:
    assert re.fullmatch(r"Asyncgroup[A-Za-z]+", rule["alert"])
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert re.fullmatch(r"\d+m", rule.get("for", "0m"))
    assert rule["annotations"]["summary"].endswith(".")
    assert rule["annotations"]["description"].endswith(".")
