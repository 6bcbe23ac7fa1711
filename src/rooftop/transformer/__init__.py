"""Transformers: architectures, config files, the catalogue, the program of a layer, and counts. Knows no chips."""

from rooftop.transformer._architecture import Architecture, absorbed, uniform, with_capacity, with_vocabulary
from rooftop.transformer._builder import Builder, Cache
from rooftop.transformer._catalogue import architecture, models
from rooftop.transformer._config import from_config, read_config
from rooftop.transformer._counts import (
    Flops,
    Parameters,
    axis_size,
    flops_per_token,
    kv_bytes_per_token,
    kv_cache_bytes,
    parameters,
    training_flops_per_token,
    weight_bytes,
)
from rooftop.transformer._families import families
from rooftop.transformer._layers import (
    MLP,
    Attention,
    CompressedAttention,
    Custom,
    DeltaNet,
    Indexer,
    LatentAttention,
    Layer,
    Mamba1,
    Mamba2,
    MoE,
    Projection,
    ShortConvolution,
    Tower,
)
from rooftop.transformer._program import Block, Programs, attended, generation, programs

__all__ = [
    "MLP",
    "Architecture",
    "Attention",
    "Block",
    "Builder",
    "Cache",
    "CompressedAttention",
    "Custom",
    "DeltaNet",
    "Flops",
    "Indexer",
    "LatentAttention",
    "Layer",
    "Mamba1",
    "Mamba2",
    "MoE",
    "Parameters",
    "Programs",
    "Projection",
    "ShortConvolution",
    "Tower",
    "absorbed",
    "architecture",
    "attended",
    "axis_size",
    "families",
    "flops_per_token",
    "from_config",
    "generation",
    "kv_bytes_per_token",
    "kv_cache_bytes",
    "models",
    "parameters",
    "programs",
    "read_config",
    "training_flops_per_token",
    "uniform",
    "weight_bytes",
    "with_capacity",
    "with_vocabulary",
]
