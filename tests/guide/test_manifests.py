"""The Dockerfile and the manifests of the page "In production": their ports, paths, times and names are those of the package."""

from __future__ import annotations

import argparse
import re
from typing import Any

import pytest

from asyncgroup import ConsumerConfig
from asyncgroup.cli.app import _parser
from asyncgroup.cli.work import _consumer_config
from asyncgroup.telemetry import ClientMetrics
from asyncgroup.telemetry.metric_names import METRICS
from asyncgroup.telemetry.probe_responses import ProbeResponses
from tests.guide.manifests import dockerfile, entry_point, manifests
from tests.guide.pages import blocks, page, snippet

DEPLOYMENT, ENVIRONMENT, SCALED = manifests()
POD = DEPLOYMENT["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]


def options() -> argparse.Namespace:
    """Return what the entry point asks `asyncgroup work` for, with the environment of this process."""
    return _parser().parse_args(entry_point()[1:])


def test_the_image_exposes_the_port_of_the_probes_on_all_interfaces() -> None:
    assert options().metrics_host == "0.0.0.0"
    assert re.findall(r"^EXPOSE (\d+)$", dockerfile(), re.MULTILINE) == [str(options().metrics_port)]


def test_the_image_has_the_module_of_the_handler() -> None:
    name = entry_point()[2].partition(":")[0] + ".py"
    assert f"COPY {name} ./" in dockerfile()
    assert snippet("in-production", f"# {name}").startswith(f"# {name}\n")


def test_the_labels_of_the_pods_are_those_that_the_deployment_selects() -> None:
    labels = DEPLOYMENT["spec"]["template"]["metadata"]["labels"]
    assert DEPLOYMENT["spec"]["selector"]["matchLabels"] == labels


@pytest.mark.parametrize(
    ("name", "path"), [("startupProbe", "/live"), ("livenessProbe", "/live"), ("readinessProbe", "/ready")]
)
def test_a_probe_has_a_port_and_a_path_of_the_server(name: str, path: str) -> None:
    pytest.importorskip("prometheus_client")
    probe: dict[str, Any] = CONTAINER[name]
    ports = {port["name"]: port["containerPort"] for port in CONTAINER["ports"]}
    assert ports[probe["httpGet"]["port"]] == options().metrics_port
    assert probe["httpGet"]["path"] == path
    assert path in ProbeResponses([], ClientMetrics()).paths
    assert probe.get("timeoutSeconds", 1) <= probe["periodSeconds"]


def test_the_grace_period_is_longer_than_a_close() -> None:
    grace = POD["terminationGracePeriodSeconds"]
    assert grace > ConsumerConfig().close_timeout
    web = snippet("in-production", "FastAPI(lifespan=lifespan)")
    assert grace > sum(
        int(seconds)
        for key in ("close_timeout", "timeout_graceful_shutdown")
        for seconds in re.findall(rf"{key}=(\d+)", web)
    )
    for stop_timeout in re.findall(r"(?:--stop-timeout |stop_grace_period: )(\d+)", page("in-production")):
        assert int(stop_timeout) > ConsumerConfig().close_timeout


def test_the_times_in_the_text_are_the_defaults() -> None:
    text = page("in-production")
    assert f"`close_timeout` ({ConsumerConfig().close_timeout:.0f} s by default)" in text
    assert f"`max_poll_interval` ({ConsumerConfig().max_poll_interval:.0f} s)" in text


def test_the_environment_configures_the_member(monkeypatch: pytest.MonkeyPatch) -> None:
    for each in [*CONTAINER["env"], *ENVIRONMENT]:
        assert ("value" in each) != ("valueFrom" in each)
        monkeypatch.setenv(each["name"], each.get("value", "billing-0"))
    assert ENVIRONMENT[0]["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.name"}}
    config = _consumer_config(options())
    assert (config.group_instance_id, config.session_timeout) == ("billing-0", 60.0)


def test_the_variables_that_the_programs_read_are_set() -> None:
    set_here = {each["name"] for each in [*CONTAINER["env"], *ENVIRONMENT]}
    read = set(re.findall(r"os\.(?:environ\[|environ\.get\(|getenv\()\"(\w+)\"", page("in-production")))
    assert read == {"ASYNCGROUP_BOOTSTRAP_SERVERS", "ASYNCGROUP_GROUP_INSTANCE_ID"}
    assert read <= set_here


def test_the_programs_have_no_address_of_a_broker() -> None:
    """In a container 127.0.0.1 is the container itself."""
    for text in blocks("in-production", "python"):
        assert not re.search(r"\d:\d{4}|localhost", text), text


def test_the_scaler_asks_for_a_metric_of_the_group() -> None:
    assert SCALED["spec"]["scaleTargetRef"]["name"] == DEPLOYMENT["metadata"]["name"]
    (trigger,) = SCALED["spec"]["triggers"]
    found = re.fullmatch(r'sum\((\w+)\{group="(\w+)"\}\)', trigger["metadata"]["query"])
    assert found is not None
    assert found[2] == options().group
    (metric,) = [each for each in METRICS.values() if each.full_name == found[1]]
    assert (metric.kind, metric.labels) == ("gauge", ("group",))


def test_the_metrics_in_the_text_exist() -> None:
    names = set(re.findall(r"asyncgroup_[a-z_]+", page("in-production")))
    assert len(names) >= 7
    assert names <= {each.full_name for each in METRICS.values()}
