"""The application: the page, its files, and a question per command."""

import json
import re
import tempfile
from collections.abc import Awaitable, Callable
from importlib import resources
from pathlib import Path
from typing import Any

import anyio
import anyio.to_process
from fastapi import FastAPI, Request, Response, UploadFile
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel

from rooftop import __version__
from rooftop.errors import InputError
from rooftop.figures import asset, plotly_script
from rooftop.web._commands import EXAMPLES, Job, command_named, failure, job_of, request_model
from rooftop.web._compute import compute
from rooftop.web._guard import Guard

#: Questions that may wait for a worker.
MOST_WAITING = 64
_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class Answered(BaseModel):
    """What `--json` prints, and figures in Plotly's terms."""

    answer: dict[str, Any]
    figures: list[dict[str, Any]]


class Failed(BaseModel):
    """Why there is no answer: a sentence, the field at fault, the kind of error."""

    error: dict[str, str | None]


_FAILURES: dict[int | str, dict[str, Any]] = {
    status: {"model": Failed, "description": told}
    for status, told in (
        (400, "Malformed, or for another host"), (403, "From another site"), (413, "Too large"),
        (422, "Refused: the field and what is allowed; or nothing fits"), (503, "Busy, or out of time or memory"),
    )
}  # fmt: skip


class Workers:
    """Processes that compute: so many at once, each question for so long; one that nobody waits for is stopped."""

    def __init__(self, count: int, seconds: float) -> None:
        self.count, self.seconds, self.waiting = count, seconds, 0
        self._limiter: anyio.CapacityLimiter | None = None

    async def run(self, request: Request, job: Job, folder: Path) -> tuple[int, str]:
        """(HTTP status, JSON)."""
        if self.waiting >= MOST_WAITING + self.count:
            return 503, failure("too many questions at once; ask again in a moment", None, "Busy")
        self._limiter = self._limiter or anyio.CapacityLimiter(self.count)
        result = 503, failure(f"the question takes more than {self.seconds:g} s; ask for less", None, "TimedOut")
        self.waiting += 1
        try:
            with anyio.move_on_after(self.seconds):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_leave_when_gone, request, tasks.cancel_scope)
                    result = await anyio.to_process.run_sync(
                        compute, job.words, str(folder), cancellable=True, limiter=self._limiter
                    )
                    tasks.cancel_scope.cancel()
        except* anyio.BrokenWorkerProcess:
            result = 503, failure("the worker ended early, perhaps for lack of memory; ask for less", None, "TooLarge")
        finally:
            self.waiting -= 1
        return result


async def _leave_when_gone(request: Request, scope: anyio.CancelScope) -> None:
    """Cancel once the client has gone, as the page does when an input changes."""
    while not await request.is_disconnected():
        await anyio.sleep(0.1)
    scope.cancel()


def application(*, hosts: frozenset[str] = frozenset(), workers: int = 2, seconds: float = 60.0) -> Any:
    """The ASGI application. hosts: names that are served beside those of the loopback interface."""
    app = FastAPI(
        title="Rooftop", version=__version__, docs_url=None, redoc_url=None,
        description="The commands of Rooftop over HTTP: fields are options of the command line, `answer` is what `--json` prints.",
    )  # fmt: skip
    pool = Workers(workers, seconds)
    for name in EXAMPLES:
        app.post(
            f"/api/{name}", response_model=Answered, responses=_FAILURES, summary=_summary(name), operation_id=name
        )(_endpoint(name, pool))
    app.post(
        "/api/trace", response_model=Answered, responses=_FAILURES, summary=_summary("trace"), operation_id="trace"
    )(_trace_endpoint(pool))
    app.get("/api/catalogue", summary="Names of models, chips, standard slices.", operation_id="catalogue")(_catalogue)
    app.add_exception_handler(RequestValidationError, _invalid)  # type: ignore[arg-type]
    app.get("/", include_in_schema=False)(lambda: _file("index.html"))
    app.get("/static/{name}", include_in_schema=False)(_file)
    return Guard(app, _LOOPBACK | hosts)


def _summary(name: str) -> str:
    return (command_named(name).help or name).split("\n")[0].split(":")[0]


def _endpoint(name: str, pool: Workers) -> Callable[..., Awaitable[Response]]:
    async def ask(body: Any, request: Request) -> Response:
        try:
            job = job_of(name, body.model_dump())
        except InputError as error:
            return _json(422, failure(error.message, error.field, "InputError"))
        with tempfile.TemporaryDirectory(prefix="rooftop-") as folder:
            for file, text in job.files.items():
                (Path(folder) / file).write_text(text, encoding="utf-8")
            return _json(*await pool.run(request, job, Path(folder)))

    ask.__annotations__ = {"body": request_model(name), "request": Request, "return": Response}
    ask.__name__ = f"ask_{name}"
    return ask


_PROFILE = re.compile(r"(\.xplane\.pb(?:\.gz)?|\.json(?:\.gz)?|\.sqlite)$")


def _trace_endpoint(pool: Workers) -> Callable[..., Awaitable[Response]]:
    async def ask_trace(request: Request, files: list[UploadFile], on: str = "") -> Response:
        """Profiles of one run, as `rooftop trace` reads them; `on` names the chip where the profile does not."""
        if not 1 <= len(files) <= 8:
            return _json(422, failure("send one to eight files", "files", "InputError"))
        with tempfile.TemporaryDirectory(prefix="rooftop-") as folder:
            names = []
            for number, upload in enumerate(files):
                found = _PROFILE.search(upload.filename or "")
                if found is None:
                    return _json(422, failure(
                        "a profile ends in .xplane.pb, .json, .json.gz or .sqlite; send one of these", "files", "InputError",
                    ))  # fmt: skip
                names.append(f"profile{number}{found[1]}")  # the user's name is not used as a name here
                async with await anyio.open_file(Path(folder) / names[-1], "wb") as target:
                    while piece := await upload.read(1 << 20):
                        await target.write(piece)
            if on and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._:x*-]{0,60}", on):
                return _json(422, failure("on names a chip, such as h100", "on", "InputError"))
            words = ["trace", *([f"--on={on}"] if on else []), "--", *names]
            return _json(*await pool.run(request, Job(words), Path(folder)))

    return ask_trace


def _catalogue() -> dict[str, Any]:
    from rooftop.hardware import chips, standard_slices
    from rooftop.transformer._catalogue import models

    return {"models": models(), "chips": {chip: standard_slices(chip) for chip in chips()}}


def _invalid(request: Request, error: RequestValidationError) -> Response:
    """What does not match the schema, as commands say it: a sentence and the field."""
    first = error.errors()[0]
    place = [str(part) for part in first["loc"] if part not in ("body", "query")]
    told = f"{place[0]}: {first['msg']}" if place else first["msg"]
    return _json(422, failure(told.replace("\n", " ")[:300], place[0] if place else None, "InputError"))


def _json(status: int, body: str) -> Response:
    return Response(body, status, media_type="application/json", headers={"cache-control": "no-store"})


def _file(name: str) -> Response:
    """A file of the page. Only those that are there are read; the name is compared, never joined."""
    from rooftop.figures import asset_names

    if name == "plotly.min.js":
        return Response(plotly_script(), media_type="text/javascript", headers={"cache-control": "max-age=86400"})
    kind = _TYPES.get(Path(name).suffix)
    own = resources.files("rooftop.web") / "assets"
    if kind and name in asset_names():
        return Response(asset(name), media_type=kind, headers={"cache-control": "no-cache"})
    if kind and name in {entry.name for entry in own.iterdir()}:
        return Response(
            (own / name).read_text(encoding="utf-8"), media_type=kind, headers={"cache-control": "no-cache"}
        )
    return _json(404, json.dumps({"error": {"message": "there is no such file", "field": None, "kind": "NotFound"}}))
