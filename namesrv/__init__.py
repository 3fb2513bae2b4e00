"""The name server: knows which broker has which topic. Routes live in memory only; several name servers know nothing of each other.

``config`` <- ``routes`` (pure) and ``kv`` <- ``processor`` (requests) <- ``app`` (who starts what).
"""
