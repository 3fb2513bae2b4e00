"""The broker: stores messages, delivers them to consumers, and keeps topics and groups.

``store`` (log and indexes) <- ``services`` (state and background tasks) and ``replication`` <-
``roles`` (master, slave, acting master) <- ``processors`` (requests) <- ``service_set`` and
``wiring`` (which part gets what) <- ``app`` (the order of tasks).
"""
