"""A node's network side: listener, connections, request memory, framing, TLS and SASL.

- `listener` accepts connections. A `connection` reads requests by `frames`, within the limit of `request_memory`, and sends responses
  in order; a `service` is a request while it is served.
- `security` has the settings of a listener, `tls` the handshake, `sasl` the authentication, with `sasl_mechanisms`.
"""
