"""The requests of POP: 200050 to 200056 and 200151, and 400 to 402, which ask and set modes."""
