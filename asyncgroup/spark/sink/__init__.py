"""The sink `asyncgroup` for DataFrames, and sinks for what the bridge delivers."""
