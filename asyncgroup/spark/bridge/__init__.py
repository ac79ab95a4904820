"""The bridge: a consumer group's handler that passes its records as DataFrames to a function."""
