"""What stands before the application: hosts, origins, the size of bodies, and headers on every answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from rooftop.web._commands import failure

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

#: No script, style, font or connection from elsewhere. Plotly sets styles at run time, hence the exception for these.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = [
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=()"),
]
#: Bytes of a body: a question, or a profile that is uploaded.
MOST_BODY = 8_000_000
MOST_UPLOAD = 100_000_000


class Guard:
    """ASGI middleware. hosts: names under which the page may be asked for; other sites cannot speak for the user."""

    def __init__(self, app: Any, hosts: frozenset[str]) -> None:
        self.app, self.hosts = app, hosts

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", []), *HEADERS]}
            await send(message)

        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await _reply(guarded, *refusal)
            return
        most = MOST_UPLOAD if scope["path"] == "/api/trace" else MOST_BODY
        length = headers.get(b"content-length", "0")
        if not length.isdigit() or int(length) > most:
            await _reply(guarded, 413, f"a body may have {most:,} bytes; send less", "TooLarge")
            return
        taken = 0

        async def bounded() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            return (
                {"type": "http.disconnect"} if taken > most else message
            )  # a body without a length that goes on and on

        await self.app(scope, bounded, guarded)

    def _refusal(self, scope: MutableMapping[str, Any], headers: dict[bytes, str]) -> tuple[int, str, str] | None:
        host = _hostname(f"//{headers.get(b'host', '')}")
        if host not in self.hosts:
            return 400, "this host is not served; name it with --host", "Forbidden"
        origin = headers.get(b"origin")
        if origin is not None and (
            origin == "null" or urlsplit(origin).netloc.lower() != headers.get(b"host", "").lower()
        ):
            return 403, "requests of other sites are refused", "Forbidden"
        if headers.get(b"sec-fetch-site") in ("cross-site", "same-site") and scope["path"].startswith("/api/"):
            return 403, "requests of other sites are refused", "Forbidden"
        return None


def _hostname(address: str) -> str:
    try:
        return (urlsplit(address).hostname or "").lower()
    except ValueError:
        return ""


async def _reply(send: Send, status: int, message: str, kind: str) -> None:
    body = failure(message, None, kind).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
