"""Receiving: push and pull consumers, and the parts they share."""
