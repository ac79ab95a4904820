"""The consumer-group engine of a WorkQueue: claims feed records, acknowledgements are committed with the group's offsets.

`engine` owns the group, the producer of copies and the tasks; each claim is a `claim_feed`, whose acknowledged offsets
(`claim_window`) are in the metadata of its commits; `copy_writer` and `copy_transactions` write copies to the retry and
the dead letter topic.
"""
