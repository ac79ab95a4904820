"""The topics of a subscription.

`topics` resolves names and patterns (`subscription_pattern`) against the metadata, `names` knows topics by their ids.
"""
