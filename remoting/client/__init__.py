"""The client side: ``connector`` for Trio programs, ``blocking`` for threads without a loop.

Import the modules, not this package: ``blocking`` must not bring Trio along.
"""
