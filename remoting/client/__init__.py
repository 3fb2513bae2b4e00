"""The other side of a connection: `connector` for Trio programs, `blocking` for plain threads.

Import the modules, not this package: `blocking` must not bring Trio along.
"""
