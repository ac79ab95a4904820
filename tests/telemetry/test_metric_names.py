"""The table of metrics: names, units and labels as Prometheus expects them."""

from __future__ import annotations

import re

import pytest

from asyncgroup.telemetry import METRICS, HistogramReading, Readings


def test_names_follow_the_conventions() -> None:
    for metric in METRICS.values():
        assert re.fullmatch(r"asyncgroup(_[a-z]+)+", metric.full_name)
        assert (metric.kind == "counter") == metric.name.endswith("_total")
        words = metric.name.removesuffix("_total").split("_")
        if metric.unit in ("seconds", "bytes"):
            assert metric.unit in words
        else:
            assert not {"seconds", "bytes"} & set(words)


def test_each_metric_says_what_it_is() -> None:
    for metric in METRICS.values():
        assert re.fullmatch(r"(1|[A-Z]).*\.", metric.help)
        assert len(set(metric.labels)) == len(metric.labels)
        assert metric.per_partition == ("partition" in metric.labels)
        assert metric.combine == "sum" or metric.kind == "gauge"


def test_buckets_ascend_and_only_histograms_have_them() -> None:
    for metric in METRICS.values():
        assert list(metric.bounds) == sorted(set(metric.bounds))
        assert bool(metric.bounds) == (metric.kind == "histogram")
        if metric.bounds:  # a bound belongs to its bucket, as `le` says
            assert metric.bucket(metric.bounds[0]) == 0
            assert metric.bucket(metric.bounds[-1] + 1) == len(metric.bounds)


def test_gauges_of_several_clients_are_combined_as_the_table_says() -> None:
    readings = Readings()
    for value in (2, 7, 3):
        readings.gauge("lag_sum", value, "g")
        readings.gauge("lag_max", value, "g")
        readings.gauge("healthy", value, "g")
    found = {name: readings.numbers[name] for name in ("lag_sum", "lag_max", "healthy")}
    assert found == {"lag_sum": {("g",): 12}, "lag_max": {("g",): 7}, "healthy": {("g",): 2}}


def test_a_histogram_counts_each_value_once_and_a_copy_stays_as_it_is() -> None:
    readings = Readings()
    for value in (1, 3, 4, 99_999):
        readings.observe("batch_records", value)
    copied = readings.copy()
    readings.observe("batch_records", 1)
    histogram = copied.histograms["batch_records"][()]
    assert histogram.counts == [1, 1, 1, 0, 0, 0, 0, 0, 0, 1]
    assert (histogram.count, histogram.sum) == (4, 100_007)
    assert repr(histogram) == "<HistogramReading: 4 values, sum 100007>"
    assert repr(copied) == "<Readings: 1 series>"
    assert isinstance(histogram, HistogramReading)


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(KeyError, match="lags"):
        Readings().gauge("lags", 1)
