"""Example pipelines, each a package, written as a user of `asyncgroup.spark` would write them."""
