"""The tracer of this package, from the application's tracer provider."""

from __future__ import annotations

from typing import Any

from triomq.client.core.config import ClientSettings


def tracer_of(settings: ClientSettings) -> Any:
    """Return the tracer, or None without a tracer provider."""
    provider = settings.tracer_provider
    return None if provider is None else provider.get_tracer("triomq")
