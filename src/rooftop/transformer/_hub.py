"""Hub ids: the config.json of a model in the local Hugging Face cache, else from the hub. No code of a model is run."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

from rooftop.errors import InputError, MissingExtra, NoAnswer
from rooftop.transformer._architecture import Architecture
from rooftop.transformer._config import read_config

_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")


def is_hub_id(name: str) -> bool:
    """Whether a name looks like `organisation/model`."""
    return _ID.fullmatch(name) is not None


def hub_config(name: str, suggestion: str = "") -> Architecture:
    """The architecture of a hub id. Raises InputError if there is no such model, and says what to install or give if it
    cannot be looked up.
    """
    path = _cached(name) or _downloaded(name, suggestion)
    return replace(read_config(path), name=name.split("/")[-1], source=f"config.json of {name}")


def _cached(name: str) -> Path | None:
    """The newest config.json of a model in the cache on this machine."""
    home = os.environ.get("HF_HUB_CACHE") or (os.environ.get("HF_HOME", "~/.cache/huggingface") + "/hub")
    folder = Path(home).expanduser() / f"models--{name.replace('/', '--')}" / "snapshots"
    try:
        found = sorted(folder.glob("*/config.json"), key=lambda p: p.stat().st_mtime)
    except OSError:
        return None
    return found[-1] if found else None


def _downloaded(name: str, suggestion: str) -> Path:
    where = f"{name} is neither in the catalogue{suggestion} nor in the Hugging Face cache of this machine"
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        raise InputError(
            f"{where}, and HF_HUB_OFFLINE forbids to fetch it; give the path of its config.json", field="model"
        )
    try:
        import huggingface_hub  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise MissingExtra(
            f"{where}; install rooftop[hub] to fetch it, or give the path of its config.json", field="model"
        ) from None
    try:
        return Path(huggingface_hub.hf_hub_download(name, "config.json"))
    except Exception as error:  # the client raises its own errors and those of the network
        kind = type(error).__name__
        reason = {
            "RepositoryNotFoundError": "the hub has no such model, or it is not public",
            "EntryNotFoundError": "it has no config.json", "GatedRepoError": "its licence must be accepted on the hub first",
        }.get(kind, f"the hub cannot be reached ({kind})")  # fmt: skip
        raise NoAnswer(f"{where}, and {reason}; give the path of its config.json", field="model") from None
