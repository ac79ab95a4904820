"""Random operations on a log in memory and a log in files, compared with a model."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from tests.broker.log_driver import Driver, FileLog, MemoryLog, operations
from tests.profiles import examples


@settings(deadline=None, max_examples=examples(120), suppress_health_check=list(HealthCheck))
@given(st.lists(operations(), min_size=1, max_size=25), st.sampled_from([150, 400, 1 << 20]))
def test_a_log_in_memory_matches_the_model(steps, segment_bytes):
    driver = Driver(MemoryLog(segment_bytes))
    for step in steps:
        step(driver)
        driver.check()


@settings(deadline=None, max_examples=examples(120), suppress_health_check=list(HealthCheck))
@given(
    steps=st.lists(operations(), min_size=1, max_size=25), segment_bytes=st.sampled_from([150, 400, 1 << 20])
)
def test_a_log_in_files_matches_the_model(tmp_path: Path, steps, segment_bytes):
    directory = tmp_path / "log"
    place = FileLog(segment_bytes, directory)
    driver = Driver(place)
    try:
        for step in steps:
            step(driver)
            driver.check()
        place.reopen()
        driver.check()
    finally:
        place.close()
        shutil.rmtree(directory, ignore_errors=True)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@settings(deadline=None, max_examples=2000, suppress_health_check=list(HealthCheck))
@given(steps=st.lists(operations(), min_size=1, max_size=60), segment_bytes=st.sampled_from([150, 400, 1500]))
def test_many_long_runs_of_a_log_in_files(tmp_path: Path, steps, segment_bytes):
    test_a_log_in_files_matches_the_model.hypothesis.inner_test(tmp_path, steps, segment_bytes)
