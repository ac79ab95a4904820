"""The producer: batches by partition, retries in order, Java's partitioner.

The way of a record: `producer` checks it (`arguments`) and waits for space (`buffer_memory`), `router` and `route` find its
partition (`partitioners`), `accumulator` puts it into a `batch`, `sender` sends the batches of one leader (`requests`) and
does what the answer asks for (`outcomes`). `delivery_tracker` knows what became of records that nobody holds a promise for.
"""

from asyncgroup.producer.producer import Producer

__all__ = ["Producer"]
