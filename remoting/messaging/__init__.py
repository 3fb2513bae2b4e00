"""The service for RocketMQ 5 clients: see ``docs/architecture/messaging.md``."""
