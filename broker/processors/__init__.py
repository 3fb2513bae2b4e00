"""Requests: from a header, by way of services and store, to a response.

``handler_table.py`` lists every request code. ``processors/topics.py`` has the handlers of requests
about topics, ``services/topics.py`` keeps the topics; so with offsets, subscriptions and queue
locks. Messages come in through ``send/``.
"""
