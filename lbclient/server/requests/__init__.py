"""From the lookup of a handler to the end of a request."""
