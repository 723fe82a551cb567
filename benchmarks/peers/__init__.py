"""Real fleets, balanced by us and by what people use instead. See `__main__`."""
