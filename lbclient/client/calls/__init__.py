"""A call in each of the four arities, as its caller sees it."""
