"""The status page as an ASGI application, within another program's web server.

What bounds requests there is that server's business; names are checked as ever.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from lbclient.admin.http import HEADERS, HttpRequest, Site

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

# That of the connection is the web server's own.
OURS = [
    (name.lower().encode(), value.encode())
    for name, value in (header.split(": ", 1) for header in HEADERS)
    if name != "Connection"
]


class AsgiSite:
    """An application, by itself or mounted below a path of another one."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
        elif scope["type"] == "http":
            await self._respond(scope, send)
        else:
            await send({"type": "websocket.close"})

    async def _respond(self, scope: Message, send: Send) -> None:
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1"), []).append(
                value.decode("latin-1")
            )
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        status, answer = self._site.answer(HttpRequest(scope["method"], path, headers))
        length = str(len(answer.body)).encode()
        kind = (b"content-type", answer.kind.encode())
        told = [kind, (b"content-length", length), *OURS]
        start = {"type": "http.response.start", "status": status.value, "headers": told}
        await send(start)
        body = b"" if scope["method"] == "HEAD" else answer.body
        await send({"type": "http.response.body", "body": body})

    def __repr__(self) -> str:
        return f"<ASGI application of {self._site!r}>"


async def _live(receive: Receive, send: Send) -> None:
    while True:
        kind = (await receive())["type"]
        await send({"type": f"{kind}.complete"})
        if kind == "lifespan.shutdown":
            return
