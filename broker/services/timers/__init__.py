"""Messages with a time of delivery: accepted, kept in the timer wheel, delivered when due."""
