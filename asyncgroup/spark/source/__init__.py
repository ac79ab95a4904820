"""The source `asyncgroup`: Spark plans ranges of offsets, its executors fetch them themselves."""
