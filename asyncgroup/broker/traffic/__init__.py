"""Requests and responses as tests see them, for brokers of any protocol: faults that are injected into them, and their history.

What a message looks like is the business of `broker.control`: it copies messages, measures them, finds names and errors in
them, and makes the response that an error stands for.
"""
