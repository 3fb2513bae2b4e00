"""The broker: stores messages, hands them to consumers, and keeps what must be remembered about topics and groups.

``store`` (log and indexes) <- ``services`` (state and background tasks) <- ``processors`` (requests) <- ``app`` (who starts what).
"""
