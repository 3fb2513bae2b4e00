"""The classes that users open: producer and consumers. Only programs import them."""
