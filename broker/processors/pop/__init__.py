"""The requests of POP: 200050 to 200056 and 200151."""
