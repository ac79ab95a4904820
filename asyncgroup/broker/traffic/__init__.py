"""Requests and responses as tests see them, for brokers of any protocol: faults that are injected into them, and their history.

What a message looks like is the business of `broker.control`: it copies messages, measures them, finds names and errors in
them, and makes the response that an error stands for.

- `fault` is what a test sets; `injection` applies it to the requests that `matching` selects.
- `recorder` keeps exchanges within limits; `history` is what a test reads of them, `folding` shortens its text.
"""
