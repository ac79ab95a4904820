"""TopicName: the names that Pulsar 4.2.4's Java class accepts and refuses, and their parts."""

from __future__ import annotations

import pytest

from asyncgroup.errors import ConfigError
from asyncgroup.pulsar.wire.topic_name import TopicName, topics_hash


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("x", "persistent://public/default/x"),
        ("t/n/x", "persistent://t/n/x"),
        ("persistent://t/n/x", "persistent://t/n/x"),
        ("non-persistent://t/n/x", "non-persistent://t/n/x"),
        ("a b", "persistent://public/default/a b"),
        (" x", "persistent://public/default/ x"),
        ("x?%/".replace("/", ""), "persistent://public/default/x?%"),
        ("é", "persistent://public/default/é"),
        ("a-b=c:d.e_1/f-g=h:i.j_2/x", "persistent://a-b=c:d.e_1/f-g=h:i.j_2/x"),
    ],
)
def test_names(text: str, name: str) -> None:
    found = TopicName.parse(text)
    assert str(found) == name
    assert TopicName.parse(name) == found
    assert f"{found.domain}://{found.namespace_name}/{found.local_name}" == name
    assert found.namespace_name == f"{found.tenant}/{found.namespace}"
    assert found.is_persistent == name.startswith("persistent")
    assert (found.partition, found.whole) == (-1, found)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "a name is `topic`"),
        (" ", "a name is `topic`"),
        ("a/b", "a name is `topic`"),
        ("a/b/c/d", "a name is `topic`"),
        ("x/", "a name is `topic`"),
        ("persistent://x", "a name is `topic`"),
        ("persistent://t/n/", "a name is `topic`"),
        ("persistent://t/n", "a name is `topic`"),
        ("//x", "'' is no name of a tenant"),
        ("persistent:///n/x", "'' is no name of a tenant"),
        ("persistent://t//x", "'' is no name of a tenant or namespace"),
        ("persistent://t t/n/x", "'t t' is no name of a tenant"),
        ("té/n/x", "'té' is no name of a tenant"),
        ("persistent://t/c/n/x", "has three parts; Pulsar 4 has no names with a cluster"),
        ("non-persistent://t/c/n/x/y", "has three parts; Pulsar 4 has no names with a cluster"),
        ("persistent://t/n//x", "has three parts"),
        ("persistent://a/b/c://d", "has three parts"),
        ("topic://t/n/x", "one of the domains persistent, non-persistent"),
        ("a://b://c", "one of the domains"),
        ("://t/n/x", "one of the domains"),
    ],
)
def test_other_names_are_refused(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        TopicName.parse(text)


@pytest.mark.parametrize(
    ("local", "partition", "whole"),
    [
        ("x-partition-0", 0, "x"),
        ("x-partition-17", 17, "x"),
        ("x-partition-2147483647", 2147483647, "x"),
        ("x-partition-1-partition-2", 2, "x-partition-1"),
        ("x\ny-partition-3", 3, "x\ny"),
        ("x-partition-01", -1, None),
        ("x-partition-00", -1, None),
        ("x-partition--1", -1, None),
        ("x-partition-+1", -1, None),
        ("x-partition-", -1, None),
        ("x-partition-1x", -1, None),
        ("x-partition-1\n", -1, None),
        ("x-partition-1 ", -1, None),
        ("x-partition-١", -1, None),
        ("x-partition-2147483648", -1, None),
        ("x-partition-9999999999", -1, None),
        ("x-partition-" + "9" * 5000, -1, None),
        ("partition-1", -1, None),
        ("x-PARTITION-1", -1, None),
    ],
)
def test_partitions(local: str, partition: int, whole: str | None) -> None:
    found = TopicName.parse(local)
    assert found.partition == partition
    assert found.whole == TopicName.parse(whole or local)
    if whole is not None:
        assert found.whole.of_partition(partition) == found


def test_a_name_that_is_only_a_partition_has_one_as_in_java() -> None:
    assert TopicName.parse("-partition-0").partition == 0


def test_hashes_sort_as_java_does() -> None:
    # by UTF-16, 😀 stands before it
    assert topics_hash(["\ufb01", "😀"]) == topics_hash(["😀", "\ufb01"])
    assert topics_hash(["\ufb01", "😀"]) != topics_hash(["\ufb01,😀"])
    assert topics_hash(["😀,\ufb01"]) == topics_hash(["\ufb01", "😀"])
