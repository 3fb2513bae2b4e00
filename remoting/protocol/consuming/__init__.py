"""Consuming, as clients and servers share it: allocation, tag expressions, popped messages."""
