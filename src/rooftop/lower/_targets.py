"""Compilers that need none of their chips: JAX's simulated CPU devices, the TPU compiler of libtpu, the CUDA plugin's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rooftop.errors import InputError, MissingExtra
from rooftop.hardware import Slice, Torus
from rooftop.lower._mesh import devices_at

#: Compilers by the name that users give them.
KINDS = ("simulated", "gpu", "tpu")

#: TPU chips as libtpu names them, and what else it must be told so that a chip is one device.
_TPUS: dict[str, dict[str, Any]] = {
    "v4": {"chip_config_name": "megacore"}, "v5e": {}, "v5p": {}, "v6e": {},
}  # fmt: skip

#: Compute capability of GPUs.
_CAPABILITY = {
    "v100": (7, 0), "a100-40g": (8, 0), "a100-80g": (8, 0), "h100": (9, 0), "h800": (9, 0), "h200": (9, 0), "b200": (10, 0),
    "gb200": (10, 0), "b300": (10, 3), "gb300": (10, 3),
}  # fmt: skip

#: Windowed einsums (collective matmuls) are what plans call --collective-matmul; without it the compilers shall not make them.
_NO_WINDOWS = {"tpu": {"xla_jf_spmd_threshold_for_windowed_einsum_mib": 1_000_000}}


@dataclass(frozen=True, slots=True)
class Target:
    """A compiler and the devices that it compiles for. kind: one of KINDS."""

    kind: str
    where: Slice

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"no compiler is called {self.kind[:40]!r}; use {', '.join(KINDS)}", field="compiler")
        chip = self.where.chip
        if self.kind == "tpu" and chip.name not in _TPUS:
            raise InputError(
                f"the TPU compiler is not asked about {chip.name}; it is about {', '.join(_TPUS)}; use --with simulated",
                field="compiler",
            )
        if self.kind == "gpu" and chip.name not in _CAPABILITY:
            raise InputError(
                f"the GPU compiler is not asked about {chip.name}; it is about {', '.join(_CAPABILITY)}; use --with simulated",
                field="compiler",
            )

    @property
    def title(self) -> str:
        """The compiler in words."""
        return {
            "simulated": "XLA's CPU compiler, on simulated devices", "gpu": "XLA's GPU compiler", "tpu": "XLA's TPU compiler",
        }[self.kind]  # fmt: skip

    def prepare(self, environment: dict[str, str], dump: str) -> None:
        """Set what JAX must find in the environment before it is imported. dump: where the compiler writes its HLO."""
        flags = [f"--xla_dump_to={dump}", "--xla_dump_hlo_as_text"]
        environment["JAX_PLATFORMS"] = "cpu"
        if self.kind == "simulated":
            flags.append(f"--xla_force_host_platform_device_count={self.where.chips}")
        elif self.kind == "tpu":
            environment["TPU_SKIP_MDS_QUERY"] = "1"
            environment["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"
        else:
            environment["CUDA_VISIBLE_DEVICES"] = "-1"
            flags += ["--xla_gpu_enable_triton_gemm=false", "--xla_gpu_autotune_level=0"]
        environment["XLA_FLAGS"] = " ".join(flags)

    def options(self, *, windows: bool) -> dict[str, Any] | None:
        """Options of the compilation. windows: matmuls may be overlapped with their collectives piece by piece."""
        return None if windows else _NO_WINDOWS.get(self.kind)

    def devices(self, coordinates: NDArray[np.int64]) -> list[Any]:
        """The devices at coordinates [n, dimensions of the network], innermost dimension first.

        Raises MissingExtra where the compiler is not installed.
        """
        if self.kind == "simulated":
            import jax

            every: Sequence[Any] = jax.devices()
        else:
            every = self._tpus() if self.kind == "tpu" else self._gpus()
        return devices_at(coordinates, self.where, every)

    def _tpus(self) -> Sequence[Any]:
        torus = next((level for level in self.where.levels if isinstance(level, Torus)), None)
        sides = torus.dims if torus is not None else (1, 1, 1) if self.where.chip.name in ("v4", "v5p") else (1, 1)
        options = dict(_TPUS[self.where.chip.name])
        slices = self.where.chips // math.prod(sides)
        if slices > 1:
            options["num_slices"] = slices
        if math.prod(sides) < 4:
            options["chips_per_host_bounds"] = (*sides, *(1,) * (3 - len(sides)))
        name = f"{self.where.chip.name}:{'x'.join(map(str, sides))}"
        return _topology("tpu", "libtpu", "rooftop[tpu]", topology_name=name, **options)

    def _gpus(self) -> Sequence[Any]:
        chips, host = self.where.chips, min(self.where.chips, self.where.chip.chips_per_host)
        return _topology(
            "cuda", "jax_cuda12_plugin", "rooftop[gpu]", target_config=self._described(),
            topology=f"1x{max(1, chips // host)}x{host}",
        )  # fmt: skip

    def _described(self) -> str:
        """The GPU in the words of XLA's GpuTargetConfigProto."""
        chip = self.where.chip
        major, minor = _CAPABILITY[chip.name]
        return f"""
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152 shared_memory_per_core: 233472
  threads_per_core_limit: 2048 core_count: {int(chip.units.get("sms", chip.cores))} fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: {int(chip.hbm_bandwidth)} l2_cache_size: {int(chip.units.get("l2_bytes", 50e6))}
  clock_rate_ghz: {chip.clock_hz / 1e9} device_memory_size: {int(chip.hbm_bytes)} shared_memory_per_block_optin: 232448
  cuda_compute_capability {{ major: {major} minor: {minor} }}
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 7 }}
runtime_version {{ major: 12 minor: 8 patch: 0 }}
device_description_str: "{chip.title}"
"""


def _topology(platform: str, module: str, extra: str, **options: Any) -> Sequence[Any]:
    import importlib.util

    if importlib.util.find_spec(module) is None:
        raise MissingExtra(
            f"this compiler needs {module}, which is not installed; install it with pip install '{extra}'",
            field="compiler",
        )
    from jax.experimental import topologies

    found: Sequence[Any] = topologies.get_topology_desc(platform=platform, **options).devices
    return found
