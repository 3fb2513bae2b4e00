"""Sending: the class Producer, its retries, the choice of a queue, the encoding of messages."""
