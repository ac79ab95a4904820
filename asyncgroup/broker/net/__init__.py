"""A node's network side: listener, connections, request memory, framing, TLS and SASL."""
