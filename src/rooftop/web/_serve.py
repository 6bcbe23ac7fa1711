"""The server of `rooftop web`."""

from __future__ import annotations

from rooftop.web._app import application


def serve(host: str, port: int, *, workers: int, seconds: float) -> None:
    """Serve until interrupted."""
    import uvicorn

    uvicorn.run(
        application(hosts=frozenset({host.lower()}), workers=workers, seconds=seconds), host=host, port=port,
        log_level="warning", server_header=False, limit_concurrency=512, timeout_keep_alive=5, h11_max_incomplete_event_size=65536,
    )  # fmt: skip
