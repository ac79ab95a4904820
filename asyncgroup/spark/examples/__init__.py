"""Pipelines worth reading: each a package of its own, written as a user of `asyncgroup.spark` would write it."""
