"""Synchronous servers, as `grpc.server` makes them, that report and leave in order."""
