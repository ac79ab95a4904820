"""Records and offsets of a session in transactions.

`consume_transform_produce` is a handler with its own producer. Its `session_transactions` runs the transactions of a session,
`shared` is their state, `output` what the user's function writes with, `errors` what follows a failure.
"""
