"""Reading stored messages, from queues and by their places in the log."""
