"""Rooftop: how long a Transformer should take on TPUs and GPUs, what bounds it, and what it costs."""

__version__ = "0.1.0"
