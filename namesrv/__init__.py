"""The name server: which broker has which topic, in memory only.

``config`` <- ``routes`` (pure) and ``kv`` <- ``*_requests`` <- ``request_table`` <- ``app`` (starts
everything). Name servers do not talk to each other.
"""
