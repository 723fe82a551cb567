"""What it takes a server to end a request. See `__main__`."""
