"""TLS: settings, certificates and connections.

Import the modules, not this package: only ``contexts``, ``reload`` and ``stream`` import ``ssl``,
only ``certificates``, ``authority`` and ``development`` import ``cryptography``; a process without
TLS loads neither.
"""
