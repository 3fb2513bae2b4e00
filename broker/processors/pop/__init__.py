"""The requests of POP: 200050 to 200055 and 200151."""
