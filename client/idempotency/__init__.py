"""``@once(store)``: the effect of a handler once for each message, however often it arrives."""
