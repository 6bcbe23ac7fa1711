"""rooftop web."""

from __future__ import annotations

import click

from rooftop.errors import InputError, MissingExtra


@click.command(
    "web",
    epilog="""\b
Examples:
  rooftop web
  rooftop web --port 9000 --workers 8
""",
)
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Where to listen; the default is this machine only."
)
@click.option("--port", default=8765, show_default=True, type=click.IntRange(1, 65535), help="The port.")
@click.option(
    "--workers", default=2, show_default=True, type=click.IntRange(1, 256), help="Questions computed at once."
)
@click.option(
    "--time-limit", default=60.0, show_default=True, type=click.FloatRange(1, 3600), help="Seconds for one question."
)
def command(host: str, port: int, workers: int, time_limit: float) -> None:
    """All of it as a page on this machine: plans, serving, simulations, profiles, figures. Nothing is sent anywhere.

    The page and its JSON API (described at /openapi.json) work offline, on http://127.0.0.1:8765 unless told otherwise.
    """
    import socket

    try:
        from rooftop.figures import plotly_script
        from rooftop.web import serve

        plotly_script()
    except ModuleNotFoundError:
        raise MissingExtra("the page is served by fastapi and uvicorn; install rooftop[web]") from None
    try:
        with socket.create_server((host, port)):
            pass
    except OSError as error:
        raise InputError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; give another --port", field="port"
        ) from None
    click.echo(f"Rooftop is at http://{'localhost' if host == '127.0.0.1' else host}:{port} (stop with ctrl-c)")
    serve(host, port, workers=workers, seconds=time_limit)
