"""Virtual time: an event loop whose clock jumps to the next timer, and an in-memory network with faults.

`loop` and `network` hold the public objects; under them `tcp_stack` (listeners, handshakes), `connection` (the two pipes
of a connection), `transport` and `server` (asyncio's objects), `conditions` (latencies and faults), `addresses`.
`network_loop` connects a loop with a network, `ordered` keeps the order of tasks and timers, `errors` name what waits.
"""
