"""Transactions of a producer: the block, the outcomes that it remembers, answers to check-backs."""
