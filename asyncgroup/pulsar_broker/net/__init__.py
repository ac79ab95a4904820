"""A client's connection to a broker. It knows no topic.

- `server_connection`: frames, the handshake, recorded requests and injected faults.
- `failure_answers`: the answers to commands that have failed; `transaction_answers`: those to the commands of transactions.
"""
