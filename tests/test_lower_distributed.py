"""A plan on two processes of one machine, as on two hosts: the same loss as in one process."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import rooftop
from rooftop.errors import InputError

jax = pytest.importorskip("jax")

from rooftop.lower import place, server, trainer  # noqa: E402

MODEL = "layers=2,d_model=32,heads=4,kv_heads=2,d_ff=64,vocab=128"
PLAN = {"batch": 16 * 16, "seq": 16, "zero": 3, "remat": "full"}
SECONDS = 120
_SOURCE = Path(__file__).parent.parent / "src"
_PROGRAM = """
import json, sys
sys.path[:0] = json.loads(sys.argv[3])
import jax
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]), initialization_timeout=60)
from test_lower_distributed import losses
assert (jax.process_count(), len(jax.devices()), len(jax.local_devices())) == (2, 8, 4)
print(json.dumps(losses()))
jax.distributed.shutdown()
"""


def losses():
    """Losses of two steps of a plan on all devices that JAX has."""
    answer = rooftop.step(MODEL, "v5e:2x4", {"fsdp": 4, "tensor": 2}, **PLAN)
    training, plan = trainer(answer), answer.best.plan
    like = training.batch(plan.microbatches, plan.groups * plan.sequences)
    text = np.random.default_rng(0).integers(0, 128, like.shape, dtype=np.int32)
    state, tokens, targets = training.start(), place(text, like), place(np.roll(text, -1, -1), like)
    step, found = jax.jit(training.step), []
    for _ in range(2):
        state, loss = step(state, tokens, targets)
        found.append(float(loss))
    return found


def together(port):
    """What two processes print, and how they end."""
    flags = "--xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    paths = json.dumps([str(_SOURCE), str(Path(__file__).parent)])
    running = [
        subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, f"127.0.0.1:{port}", str(number), paths],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for number in range(2)
    ]  # fmt: skip
    try:
        ended = [process.communicate(timeout=SECONDS) for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    return [(process.returncode, *out) for process, out in zip(running, ended, strict=True)]


def test_two_processes_train_as_one_does():
    for _ in range(3):  # somebody else may take the port between its choice and its use
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        ended = together(port)
        if all(code == 0 for code, _, _ in ended) or not any("in use" in error for _, _, error in ended):
            break
    for code, _, error in ended:
        assert code == 0, error[-2000:]
    expected = losses()
    for _, out, _ in ended:
        assert json.loads(out.strip().splitlines()[-1]) == pytest.approx(expected, rel=1e-4)
    assert expected[1] < expected[0]


def test_a_way_to_serve_runs_on_its_mesh():
    answer = rooftop.serve(MODEL, "v5e:2x4", prompt=8, output=8, batches=(8,), weights="bf16")
    serving = server(answer)
    assert serving.capacity == 16
    assert serving.mesh.devices.size == 8
    params = place(trainer(rooftop.step(MODEL, "v5e:1", {}, batch=16, seq=16)).initial(), serving.shapes())
    text = np.random.default_rng(0).integers(0, 128, (8, 8), dtype=np.int32)
    found = jax.jit(serving.answer, static_argnums=3)(params, text, np.full(8, 8, np.int32), 3)
    assert found.shape == (8, 3)
    with pytest.raises(InputError, match="devices"):
        server(answer, jax.devices()[:4])


def test_plans_that_are_not_lowered_are_refused_by_name():
    deep = MODEL.replace("layers=2", "layers=6")
    for mesh, more, said in (
        ({"pipeline": 2, "fsdp": 4}, {"schedule": "zb-h1"}, "order of GPipe"),
        ({"pipeline": 2, "fsdp": 4}, {"head_layers": 2}, "equal shares"),
        ({"fsdp": 8}, {"optimizer": "muon"}, "muon"),
    ):
        answer = rooftop.step(deep, "v5e:2x4", mesh, batch=512, seq=16, **more)
        with pytest.raises(InputError, match=said):
            trainer(answer)
