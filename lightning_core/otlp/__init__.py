"""Rollouts as OpenTelemetry traces, and the way to a collector. Needs the extra `otel`."""
