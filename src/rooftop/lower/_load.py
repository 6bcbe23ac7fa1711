"""The function that a user names, and the shapes that it is asked about."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rooftop._files import read_text
from rooftop.errors import InputError, nearest
from rooftop.lower._jax import jax
from rooftop.units import dtype as canonical

_JAX_NAMES = {
    "bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64", "int8": "int8", "int4": "int4",
    "int32": "int32", "int64": "int64", "fp8": "float8_e4m3fn", "fp4": "float4_e2m1fn",
}  # fmt: skip
_SHAPE = re.compile(r"\s*([A-Za-z0-9_]{1,24})\s*\[([0-9,\s]{0,200})\]\s*\Z")
_MOST_ARGUMENTS = 1000
_MOST_HLO = 1 << 30


def load_function(name: str, *, devices: int | None = None) -> Callable[..., Any]:
    """The function `module:function` or `path/to/file.py:function`. The module is imported, which runs it.

    devices: simulated CPU devices that JAX shall have, for modules that make a mesh of real devices.
    Raises InputError where there is no such module or function, or where importing it fails.
    """
    if devices is not None:
        os.environ["XLA_FLAGS"] = (
            f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}".strip()
        )
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
    jax()
    where, _, attribute = name.rpartition(":")
    if not where or not attribute:
        raise InputError(
            f"{name[:80]!r} names no function; write MODULE:FUNCTION or FILE.py:FUNCTION", field="function"
        )
    try:
        module = _from_file(Path(where)) if where.endswith(".py") else _from_path(where)
    except InputError:
        raise
    except Exception as error:
        text = " ".join(str(error).split())[:200]
        raise InputError(f"importing {where} failed: {type(error).__name__}: {text}", field="function") from None
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            known = [n for n in dir(found) if not n.startswith("_")]
            raise InputError(f"{where} has no {part}{nearest(part, known)}", field="function")
        found = getattr(found, part)
    if not callable(found):
        raise InputError(f"{name} is not a function", field="function")
    function: Callable[..., Any] = found
    return function


def _from_file(path: Path) -> Any:
    if not path.is_file():
        raise InputError(f"there is no file {path}; give FILE.py:FUNCTION", field="function")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _from_path(name: str) -> Any:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    return importlib.import_module(name)


def parse_shapes(text: str) -> tuple[Any, ...]:
    """`bf16[512,8192]; f32[16]` as abstract arguments. Raises InputError."""
    import jax.numpy as jnp

    parts = [p for p in text.split(";") if p.strip()]
    if len(parts) > _MOST_ARGUMENTS:
        raise InputError(f"{len(parts)} shapes are too many; {_MOST_ARGUMENTS} at most", field="shapes")
    result = []
    for part in parts:
        match = _SHAPE.match(part)
        if match is None:
            raise InputError(
                f"{part.strip()[:60]!r} is not a shape; write bf16[512,8192], several of them with ; between",
                field="shapes",
            )
        kind = canonical(match[1])
        if kind not in _JAX_NAMES:
            raise InputError(f"JAX has no {kind}; use one of {', '.join(_JAX_NAMES)}", field="shapes")
        sizes = tuple(int(n) for n in match[2].split(",") if n.strip())
        result.append(jax().ShapeDtypeStruct(sizes, jnp.dtype(_JAX_NAMES[kind])))
    return tuple(result)


def read_hlo(path: Path) -> str:
    """The text of a module of HLO. Raises InputError for what is not text, and for what is too large."""
    try:
        if path.stat().st_size > _MOST_HLO:
            raise InputError(f"{path} is larger than {_MOST_HLO:,} bytes; give the HLO of one module", field="file")
        return read_text(path, _MOST_HLO)
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror or error}; give a file of HLO text", field="file"
        ) from None
    except ValueError:
        raise InputError(f"{path} is not text; give HLO text, as compiled.as_text() writes it", field="file") from None
