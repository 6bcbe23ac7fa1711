"""Transformers: architectures, config files, the catalogue, the program of a layer, and counts. Knows no chips."""

from rooftop.transformer._architecture import Architecture
from rooftop.transformer._catalogue import architecture, models
from rooftop.transformer._config import FAMILIES, from_config, read_config
from rooftop.transformer._counts import (
    Flops,
    Parameters,
    flops_per_token,
    kv_bytes_per_token,
    kv_cache_bytes,
    parameters,
    training_flops_per_token,
)
from rooftop.transformer._program import Block, Programs, attended, programs

__all__ = [
    "FAMILIES",
    "Architecture",
    "Block",
    "Flops",
    "Parameters",
    "Programs",
    "architecture",
    "attended",
    "flops_per_token",
    "from_config",
    "kv_bytes_per_token",
    "kv_cache_bytes",
    "models",
    "parameters",
    "programs",
    "read_config",
    "training_flops_per_token",
]
