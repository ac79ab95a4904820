"""Example pipelines, each a package (`flights`), written as a user of `asyncgroup.spark` would write them."""
