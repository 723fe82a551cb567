"""A name server on loopback, over UDP and TCP, that says what it is told to say."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.resolver
import dns.rrset

MOST_OVER_UDP = 1232  # bytes, as dnspython offers to take


class NameServer(asyncio.DatagramProtocol):
    """`records[name, kind]` are texts as in a zone file. `fails` names the answer of
    a kind instead: an rcode, or `silence`. What is not there is no data, and names
    without any record are NXDOMAIN."""

    def __init__(self) -> None:
        self.port = 0
        self.records: dict[tuple[str, str], list[str]] = {}
        self.ttl = 1
        self.patience = 20.0  # seconds, of who asks
        self.fails: dict[str, str] = {}
        self.asked: list[tuple[str, str, str]] = []  # name, kind, over what
        self._transport: Any = None

    def resolver(self) -> dns.resolver.Resolver:
        """dnspython's, as if /etc/resolv.conf named this server."""
        resolver = dns.resolver.Resolver(configure=False)
        resolver.nameservers = ["127.0.0.1"]
        resolver.port = self.port
        resolver.timeout = resolver.lifetime = self.patience
        return resolver

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        answer = self._answer(data, "udp")
        if answer is None:
            return
        if len(answer.to_wire(max_size=65535)) > MOST_OVER_UDP:
            answer.answer.clear()
            answer.flags |= dns.flags.TC
        self._transport.sendto(answer.to_wire(), addr)

    async def serve_tcp(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            (size,) = struct.unpack("!H", await reader.readexactly(2))
            answer = self._answer(await reader.readexactly(size), "tcp")
            if answer is not None:
                data = answer.to_wire(max_size=65535)
                writer.write(struct.pack("!H", len(data)) + data)
                await writer.drain()
        writer.close()

    def _answer(self, data: bytes, over: str) -> dns.message.Message | None:
        query = dns.message.from_wire(data)
        (question,) = query.question
        name = question.name.to_text(omit_final_dot=True)
        kind = dns.rdatatype.to_text(question.rdtype)
        self.asked.append((name, kind, over))
        fails = self.fails.get(kind)
        if fails == "silence":
            return None
        answer = dns.message.make_response(query)
        if fails is not None:
            answer.set_rcode(dns.rcode.from_text(fails))
        elif (name, kind) in self.records:
            texts = self.records[name, kind]
            if texts:
                rrset = dns.rrset.from_text(question.name, self.ttl, "IN", kind, *texts)
                answer.answer.append(rrset)
        elif not any(known == name for known, _ in self.records):
            answer.set_rcode(dns.rcode.NXDOMAIN)
        return answer


@asynccontextmanager
async def name_server(port: int = 0) -> AsyncIterator[NameServer]:
    """Runs one, on a port that is free for both unless it is given."""
    loop = asyncio.get_running_loop()
    server = NameServer()
    tcp = await asyncio.start_server(server.serve_tcp, "127.0.0.1", port)
    server.port = tcp.sockets[0].getsockname()[1]
    transport, _ = await loop.create_datagram_endpoint(
        lambda: server, local_addr=("127.0.0.1", server.port)
    )
    try:
        yield server
    finally:
        transport.close()
        tcp.close()
        await tcp.wait_closed()
