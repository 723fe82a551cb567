"""What comes in, what is refused, and what waits for its turn."""
