"""Sending: retries, the choice of a queue, the encoding of messages, batches."""
