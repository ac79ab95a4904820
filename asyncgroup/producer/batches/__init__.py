"""Records that are not done: batches by partition, and which of them are sent now. State without I/O or tasks.

`accumulator` appends a record to a `batch`. A `partition_queue` keeps the order of its partition, and the sequence numbers;
`schedule` plans which batches to send now. `results` has what receives the result of a record: the futures of callers,
and promises in their place.
"""
