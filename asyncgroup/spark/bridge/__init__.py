"""The bridge: a live consumer group feeds a function of DataFrames."""
