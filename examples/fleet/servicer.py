"""What a backend of the demo, or of docker-compose.yml, does for a call."""

from typing import Any

from cpu import Cpu
from fleet_pb2 import UsageReply, WorkReply
from fleet_pb2_grpc import FleetServicer


class Fleet(FleetServicer):
    """Work runs on an emulated processor, which says how busy it is."""

    def __init__(self, name: str, cpu: Cpu) -> None:
        self._name = name
        self._cpu = cpu
        self._requests = 0

    async def Work(self, request: Any, context: Any) -> Any:
        await self._cpu.run(request.cost)
        self._requests += 1
        return WorkReply(backend=self._name)

    async def Usage(self, request: Any, context: Any) -> Any:
        busy, elapsed = self._cpu.usage()
        return UsageReply(
            busy=busy,
            elapsed=elapsed,
            cores=self._cpu.cores,
            speed=self._cpu.speed,
            requests=self._requests,
        )
