"""What must be set before JAX is imported anywhere: eight simulated devices on the CPU, compiled quickly. Also the width of output."""

from __future__ import annotations

import os

_FLAGS = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAGS}".strip()
os.environ["COLUMNS"] = "110"  # what the docs show; a worker of pytest-xdist inherits the width of a terminal
