"""What became of one message: where it is stored, and what each consumer group did with it."""
