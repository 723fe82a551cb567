"""A web shop's search: an HTTP API in front of a gRPC catalog."""
