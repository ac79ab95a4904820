"""The pytest kit: the fixtures' clusters and contexts, and the marker's options; `asyncgroup.testing.pytest_plugin` is its plugin."""
