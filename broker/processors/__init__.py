"""Requests: header -> services and store -> response.  No background tasks; ``table.py`` lists every code."""
