"""A server in more demand than it can meet. See `__main__`."""
