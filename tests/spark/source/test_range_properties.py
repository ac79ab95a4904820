"""Random ranges of random logs are read exactly; in virtual time."""

from __future__ import annotations

import itertools

from hypothesis import given, settings as rules, strategies as st

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.testing import VirtualTimeLoop
from tests.profiles import examples
from tests.spark.source.reading import TOPIC, by_partition, fill, part, worker


@rules(max_examples=examples(40))
@given(data=st.data())
def test_any_ranges_of_any_logs(data: st.DataObject) -> None:
    """With batches of all sizes, small fetches, and several ranges at once, some of the same partition."""
    logs = data.draw(st.lists(st.lists(st.integers(1, 30), max_size=12), min_size=1, max_size=3))
    ranges = []
    for number, sizes in enumerate(logs):
        marks = sorted(data.draw(st.lists(st.integers(0, sum(sizes)), max_size=4)))
        ranges += [part(start, end, number) for start, end in itertools.pairwise(marks)]

    async def run() -> None:
        async with EmbeddedCluster(2) as cluster:
            cluster.create_topic(TOPIC, len(logs))
            for number, sizes in enumerate(logs):
                for size in sizes:
                    fill(cluster, size, partition=number, per_batch=size, size=100)
            async with worker(cluster, fetch_bytes=data.draw(st.sampled_from([100, 5_000, 1 << 20]))) as one:
                for chosen in (ranges, ranges[::2], ranges[1::2]):
                    rows = by_partition(await one.rows(*chosen))
                    for number in range(len(logs)):
                        wanted = [r for one in chosen if one.partition == number for r in range(*one[2:])]
                        assert rows.get(number, []) == wanted

    loop = VirtualTimeLoop(max_virtual_time=3600)
    try:
        loop.run_until_complete(run())
    finally:
        loop.close()
