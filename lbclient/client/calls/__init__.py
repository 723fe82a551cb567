"""The calls a channel returns: one for each of gRPC's four arities."""
