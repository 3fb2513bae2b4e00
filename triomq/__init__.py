"""TrioMQ."""
