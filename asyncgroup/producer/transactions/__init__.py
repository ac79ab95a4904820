"""The state of a transactional producer, and the requests to its coordinator.

`state` says what is allowed when, what the sender may send and what the loss of a record means.
`coordinator` sends the requests, `requests` has the tables of error codes; `offsets` commits offsets. `ending` waits for the
end of a transaction although its caller is cancelled. `missing_partitions` ends the wait for deleted topics, `wait_log` logs
waits that take long.
"""
