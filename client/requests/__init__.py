"""Request and reply: a producer's requests, and the replies of consumers."""
