"""From a batch to its result: Produce requests, their responses, retries and errors.

`sender` sends the plan of `batches.schedule`, whenever `timing` says so: `requests` builds and sends Produce requests in order,
`compressor` compresses large batches on threads before, and `producer_ids` obtains ids for idempotent partitions.
`batch_results` says what a response means for each batch (`requests` has the table of error codes). `deliveries`
counts the lost records of `enqueue`, which have no future, until `flush` reports them. `errors` makes the errors of records.
"""
