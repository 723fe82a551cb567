"""What a failed call is in HTTP."""

import grpc
from fastapi import Request
from fastapi.responses import JSONResponse
from grpc.aio import AioRpcError

HTTP = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}


async def respond(_: Request, error: Exception) -> JSONResponse:
    """Backends that are overloaded or gone make 503, after all retries.

    The details are not for users: they may name addresses.
    """
    code = error.code() if isinstance(error, AioRpcError) else grpc.StatusCode.UNKNOWN
    status = HTTP.get(code, 502)
    headers = {"Retry-After": "1"} if status in (429, 503) else {}
    return JSONResponse({"detail": f"catalog: {code.name}"}, status, headers)
