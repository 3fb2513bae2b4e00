"""``mqproxy``: the service for RocketMQ 5 clients in front of a cluster. See ``docs/proxy.md``."""
