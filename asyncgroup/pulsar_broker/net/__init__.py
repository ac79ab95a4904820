"""A client's connection to a broker. It knows no topic.

- `server_connection`: frames, recorded requests and injected faults; `handshake`: CONNECT, and the credential of the client.
- `failure_answers`: the answers to commands that have failed; `transaction_answers`: those to the commands of transactions.
"""
