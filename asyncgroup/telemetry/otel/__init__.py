"""OpenTelemetry: spans and metrics of asyncgroup's clients, by hooks. Importing it needs `asyncgroup[opentelemetry]`."""

from asyncgroup.telemetry.extras import require_package

require_package("opentelemetry.trace", "opentelemetry-api", "opentelemetry")
