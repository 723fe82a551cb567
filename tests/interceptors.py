"""Clients' interceptors that pass calls on as they are, one of each arity."""

from typing import Any

import grpc.aio


class PassesUnary(grpc.aio.UnaryUnaryClientInterceptor):
    async def intercept_unary_unary(
        self, continuation: Any, details: Any, request: Any
    ) -> Any:
        return await continuation(details, request)


class PassesAnswers(grpc.aio.UnaryStreamClientInterceptor):
    async def intercept_unary_stream(
        self, continuation: Any, details: Any, request: Any
    ) -> Any:
        return await continuation(details, request)


class PassesRequests(grpc.aio.StreamUnaryClientInterceptor):
    async def intercept_stream_unary(
        self, continuation: Any, details: Any, requests: Any
    ) -> Any:
        return await continuation(details, requests)


class PassesBoth(grpc.aio.StreamStreamClientInterceptor):
    async def intercept_stream_stream(
        self, continuation: Any, details: Any, requests: Any
    ) -> Any:
        return await continuation(details, requests)


PASSING = [PassesUnary(), PassesAnswers(), PassesRequests(), PassesBoth()]
