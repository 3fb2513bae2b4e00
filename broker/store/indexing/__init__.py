"""Following the log with consume queues and key index, and making them durable."""
