"""What every part of the cluster stands on: errors, settings, addresses, files, logs, processes.

Imports nothing else of this package.
"""
