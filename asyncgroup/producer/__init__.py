"""Producer: batches per partition, retries that keep the order, Java's default partitioning.

A record passes through these modules: `producer` checks it (`arguments`) and waits for buffer memory (`buffer_memory`),
`router` and `route` choose its partition (`partitioners`), `accumulator` appends it to a `batch`, `sender` sends the
batches of one leader in one request (`requests`) and acts on each partition's error code (`outcomes`).
`delivery_tracker` counts the lost records of `enqueue`, which have no future, until `flush` reports them.
"""

from asyncgroup.producer.producer import Producer

__all__ = ["Producer"]
