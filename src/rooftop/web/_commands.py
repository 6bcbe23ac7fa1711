"""Commands as requests: the fields are the options of the command line, and a request becomes its words.

What reads or writes files of the machine is left out; a model, a plan or a trace of requests comes in the request itself and
is a file of the job's own folder.
"""

from __future__ import annotations

import functools
import importlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import click
from pydantic import BaseModel, ConfigDict, Field, create_model

from rooftop.errors import InputError

#: Command -> an example of what is asked, which is also shown in the schema.
EXAMPLES: dict[str, dict[str, Any]] = {
    "plan": {"model": "llama-3-8b", "on": "h100:64", "batch": "1M"},
    "step": {"model": "llama-3-8b", "on": "h100:64", "mesh": "fsdp=8,tensor=8", "batch": "1M"},
    "serve": {"model": "llama-3-8b", "on": "h100:1", "prompt": "1024", "output": "256"},
    "simulate": {"model": "llama-3-8b", "on": "h100:1", "workload": "poisson:rate=4,requests=200,input=500,output=50"},
    "scaling": {"model": "llama-3-8b"},
    "sweep": {"model": "llama-3-8b", "on": "h100:64", "vary": ["batch=1M..4M"]},
    "whatif": {"model": "llama-3-8b", "on": "h100:64", "set": ["batch=1M"], "number": ["hbm_bandwidth"], "fixed": True},
    "export": {
        "plan": '{"version": 1, "for": {"model": "llama-3-8b", "slice": "h100:64", "batch": 1048576}, "mesh": {"fsdp": 8, "tensor": 8}}',
        "to": "maxtext",
    },
    "model": {"names": ["llama-3-8b"]},
    "chip": {"name": "v5e"},
    "slice": {"on": "v5p:4x4x4"},
    "roofline": {"expression": "bf16[B=512, D=8192] * bf16[D, F=28672] -> bf16[B, F]", "on": "v5e"},
    "matmul": {
        "expression": "A[I_X, J] * B[J, K_Y] -> C[I_X, K_Y]", "sizes": "I=8192,J=8192,K=32768", "mesh": "X=4,Y=8", "on": "v5e:4x8",
    },
    "collective": {"kind": "all-gather", "bytes": "34MB", "axes": "X=16", "on": "v5e:16x16"},
}  # fmt: skip
#: Options that are about files of the machine or about how a terminal shows an answer.
_LEFT_OUT = {"as_json", "html", "pdf", "save", "versus", "timeline_file", "requests_file", "step_model", "file", "out", "engine", "workers", "address"}  # fmt: skip
#: Fields whose values can name a file: no folders, so that only files of the job's own folder can be meant.
_NAMES = {"model", "names", "on", "name", "slice", "where", "draft", "prefill_on", "workload", "lengths", "set", "vary"}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 _.,:=*~+-]{0,399}")
#: A folder above; the dots of a range stand between values.
_ABOVE = re.compile(r"(?:^|[=,+ ])\.\.|\.\.(?:$|[,+ ])")
#: What a request can bring along: field -> (the file that it becomes, most characters, what it is).
_FILES = {
    "config": ("model.json", 1_000_000, "The config.json of the model, instead of its name."),
    "plan": ("plan.json", 1_000_000, "A saved plan, instead of a mesh."),
    "requests": ("requests.csv", 5_000_000, "A trace of requests as CSV, instead of a workload."),
    "requests_jsonl": ("requests.jsonl", 5_000_000, "A trace of requests as JSON lines, instead of a workload."),
}  # fmt: skip
_BRINGS = {"plan": ("config",), "step": ("config", "plan"), "serve": ("config",), "simulate": ("config", "requests", "requests_jsonl"),
           "scaling": ("config",), "model": ("config",), "export": ("plan",), "sweep": ("config",), "whatif": ("config",)}  # fmt: skip


#: What arguments are; options say it themselves.
_ARGUMENTS = {
    "model": "A name of the catalogue, or numbers: layers=48,d_model=6144,heads=64,d_ff=24576,vocab=51200.",
    "names": "Names of the catalogue; several are compared, none lists all.",
    "name": "A chip; none lists all.",
    "on": "A slice: v5e:4x8, v5p:8x8x16*4, h100:1024.",
    "expression": "In the notation of named axes: A[I_X, J] * B[J, K_Y] -> C[I_X, K_Y].",
    "kind": "all-gather, reduce-scatter, all-reduce, all-to-all, permute or broadcast.",
}


@dataclass(frozen=True, slots=True)
class Job:
    """Words for the command line, and the files that they name."""

    words: list[str]
    files: dict[str, str] = field(default_factory=dict)


def command_named(name: str) -> click.Command:
    """The command of the command line."""
    found: click.Command = importlib.import_module(f"rooftop.cli._{name}").command
    return found


def parameters(name: str) -> dict[str, click.Parameter]:
    """The parameters that a request can give, by the names that they have there."""
    result: dict[str, click.Parameter] = {}
    for param in command_named(name).params:
        if param.name in _LEFT_OUT:
            continue
        if isinstance(param, click.Option):
            long = next(o for o in param.opts if o.startswith("--"))
            result[long[2:].replace("-", "_")] = param
        else:
            result[{"where": "on"}.get(str(param.name), str(param.name))] = param
    return result


@functools.cache
def request_model(name: str) -> type[BaseModel]:
    """What a request to a command may say, with the help of its options."""
    fields: dict[str, Any] = {}
    brings = _BRINGS.get(name, ())
    for key, param in parameters(name).items():
        kind, default = _type(param)
        told = getattr(param, "help", None) or _ARGUMENTS[key]
        needed = param.required and not (key in ("model", "workload") and brings)
        fields[key] = (kind, Field(description=told)) if needed else (kind | None, Field(default, description=told))
    for key in brings:
        _, most, told = _FILES[key]
        fields[key] = (str | None, Field(None, description=told, max_length=most))
    return create_model(
        f"{name.capitalize()}Request",
        __config__=ConfigDict(extra="forbid", json_schema_extra={"examples": [EXAMPLES[name]]}),
        **fields,
    )


def _type(param: click.Parameter) -> tuple[Any, Any]:
    """(type, default) of a field."""
    if getattr(param, "is_flag", False) and isinstance(param.type, click.types.BoolParamType):
        return bool, False
    single: Any
    if isinstance(param.type, click.Choice):
        single = Literal[tuple(str(c) for c in param.type.choices)]
    elif isinstance(param.type, click.IntRange):
        least = param.type.min if param.type.min is not None else -(10**9)
        most = param.type.max if param.type.max is not None else 10**9
        single = Annotated[int, Field(ge=least, le=most)]
    elif isinstance(param.type, (click.types.IntParamType,)):
        single = int
    elif isinstance(param.type, (click.types.FloatParamType, click.FloatRange)):
        single = float
    else:
        single = Annotated[str, Field(max_length=1000)]
    if param.multiple or param.nargs == -1:
        return Annotated[list[single], Field(max_length=16)], []
    return single, None


def job_of(name: str, request: Mapping[str, Any]) -> Job:
    """The words and files of a request. Raises InputError for a name that could mean a file elsewhere."""
    known = parameters(name)
    options, arguments, files = [], [], {}
    given = {key: value for key, value in request.items() if value not in (None, [], False)}
    for key, (file, _, _) in _FILES.items():
        if key in given and key in _BRINGS.get(name, ()):
            files[file] = given.pop(key)
            target = {"config": "model", "plan": "plan"}.get(key, "workload")
            if target == "plan" and name == "export":
                arguments.append(file)
            elif target == "plan":
                options.append(f"--plan={file}")
            elif target == "model" and name == "model":
                given["names"] = [file]
            else:
                given[target] = file
    for key, value in given.items():
        param = known[key]
        texts = [_text(key, each) for each in (value if isinstance(value, list) else [value])]
        if isinstance(param, click.Argument):
            arguments += texts
        elif value is True:
            options.append(param.opts[0])
        else:
            options += [f"{next(o for o in param.opts if o.startswith('--'))}={text}" for text in texts]
    return Job([name, *options, "--", *arguments], files)


def _text(key: str, value: Any) -> str:
    text = str(value)
    if key in _NAMES and (not _NAME.fullmatch(text) or _ABOVE.search(text)):
        raise InputError(
            f"{key} {text[:60]!r} is not a name; a path cannot be given here, give a name of the catalogue or the file itself",
            field=key,
        )
    if any(ord(c) < 32 for c in text):
        raise InputError(f"{key} has control characters; leave them out", field=key)
    return text


def failure(message: str, field: str | None, kind: str) -> str:
    """An error as every command writes it."""
    return json.dumps({"error": {"message": message, "field": field, "kind": kind}})
