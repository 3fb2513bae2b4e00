"""What every part of the client stands on: errors, settings, session, routes, retry, clocks, ids.

Imports nothing else of this package.
"""
