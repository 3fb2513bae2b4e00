"""Message traces: records of what happened to each message, in a topic of their own."""
