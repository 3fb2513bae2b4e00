"""Transactions: halves that wait for their end, checks of those that wait too long."""
