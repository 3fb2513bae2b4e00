"""The HTTP port of a server: ``/live``, ``/ready``, ``/status``, and ``/metrics`` (Prometheus)."""
