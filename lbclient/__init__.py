"""Client-side load balancing for asyncio gRPC."""
