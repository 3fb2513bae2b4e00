"""Receiving: push and pull consumers, and what they are made of."""
