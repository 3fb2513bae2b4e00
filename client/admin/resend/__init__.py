"""Find stored messages, and send copies of them: dead letters, or messages of a time range."""
