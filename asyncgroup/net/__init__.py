"""A connection and what keeps it alive, without a protocol: clients of several systems share it.

- `addresses`: host names, how they are resolved and shown; `transport`: sockets and TLS; `tls_errors`: what OpenSSL's reasons
  mean, with a protocol's `Hints` what to change.
- `framing`: frames that begin with their size. `servers`: closes a listening server without losing a connection.
- `slots`: how many requests are under way; `backoff`: the pauses of a loop that tries again.
"""
