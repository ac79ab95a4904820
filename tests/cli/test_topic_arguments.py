"""Arguments in the forms of Kafka's tools: partitions of topics, configurations, replicas."""

from __future__ import annotations

import argparse

import pytest

from asyncgroup.cli.topic_arguments import PartitionScope, parse_assignments, parse_configs, parse_scope


def test_scopes() -> None:
    assert parse_scope("orders") == PartitionScope("orders", None)
    assert parse_scope("orders:3,1,3") == PartitionScope("orders", (3, 1))
    for text in ("orders:", "orders:a", "orders:1,", "orders:-1", f"orders:{2**31}"):
        with pytest.raises(argparse.ArgumentTypeError, match="some of its partitions"):
            parse_scope(text)
    with pytest.raises(argparse.ArgumentTypeError, match="topic"):
        parse_scope("a b:1")


def test_configurations_are_written_as_for_kafkas_tool() -> None:
    assert parse_configs("a=1,b=[x,y], c = z=z ,d=") == {"a": "1", "b": "x,y", "c": "z=z", "d": ""}
    assert parse_configs("a=[x]") == {"a": "x"}
    for text in ("", "a", "=1", "a=b,c"):
        with pytest.raises(argparse.ArgumentTypeError, match=r"NAME=\[a,b\]"):
            parse_configs(text)
    with pytest.raises(argparse.ArgumentTypeError, match="a is given twice"):
        parse_configs("a=1,a=2")


def test_a_wrong_configuration_does_not_show_what_may_be_a_password() -> None:
    with pytest.raises(argparse.ArgumentTypeError) as caught:
        parse_configs("sasl.jaas.config=[hunter2],hunter2")
    assert "hunter2" not in str(caught.value)


def test_assignments() -> None:
    assert parse_assignments("1:2, 2:3") == [[1, 2], [2, 3]]
    for text in ("", "1:", "1,,2", "a:b"):
        with pytest.raises(argparse.ArgumentTypeError, match="is not a list of replicas"):
            parse_assignments(text)
