"""Benchmarks that measure asyncgroup and other clients in one run: `python -m benchmarks` lists them."""
