"""The HTTP port of a service: probes (`/live`, `/ready`, `/status`) and figures for Prometheus (`/metrics`)."""
