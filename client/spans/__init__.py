"""OpenTelemetry: spans of sends, handling and settling, and trace contexts in messages.

The rest of the SDK imports ``producing`` and ``consuming``; the other modules need the extra
``otel``, and are loaded only with a tracer provider.
"""
