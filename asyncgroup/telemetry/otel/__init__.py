"""OpenTelemetry: spans and metrics of asyncgroup's clients, by hooks. Importing it needs `asyncgroup[opentelemetry]`.

- `traces`: spans, by the names of `semantic_names`. `header_context` reads and writes their context in headers, and `current_span` makes
  one current in the task that reads; `span_attributes` are those of records.
- `metrics`: instruments over `ClientMetrics`.
- `instrumentor` turns both on for programs that say nothing of them.
"""

from asyncgroup.telemetry.extras import require_package

require_package("opentelemetry.trace", "opentelemetry-api", "opentelemetry")
