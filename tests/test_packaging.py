"""What ships, and what must not be in it."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def tracked() -> list[Path]:
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / line for line in listing.stdout.splitlines()]


def test_no_registry_hosts_and_no_machine_paths() -> None:
    forbidden = re.compile(
        "|".join(
            ["py" + r"pi\.org", "python" + "hosted", "npm" + r"js\.", r"(?<![\w/])/wo" + r"rk/", "/opt/" + "wheels"]
        )
    )
    found = []
    for path in tracked():
        if path.is_file() and path.suffix not in (".png",):
            found += [
                f"{path}: {m.group()}" for m in forbidden.finditer(path.read_text(encoding="utf-8", errors="ignore"))
            ]
    assert not found


def test_every_file_of_the_package_is_in_the_wheel(tmp_path: Path) -> None:
    from hatchling.builders.wheel import WheelBuilder

    (artifact,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(artifact) as wheel:
        shipped = set(wheel.namelist())
    source = ROOT / "src"
    files = {str(path.relative_to(source)) for path in tracked() if path.is_relative_to(source) and path.is_file()}
    assert "rooftop/py.typed" in files
    assert any(name.endswith(".toml") for name in files)
    assert files <= shipped
    assert any(name.endswith("licenses/LICENSE") for name in shipped)


def test_every_listed_command_exists_and_every_command_is_listed() -> None:
    from rooftop.cli import COMMANDS

    for name in COMMANDS:
        command = importlib.import_module(f"rooftop.cli._{name}").command
        assert command.name == name
        assert command.help
        assert "as_json" in {param.name for param in command.params}
    modules = {path.stem[1:] for path in (ROOT / "src/rooftop/cli").glob("_[a-z]*.py")}
    assert {m for m in modules if hasattr(importlib.import_module(f"rooftop.cli._{m}"), "command")} == set(COMMANDS)


def test_the_lock_has_hashes_for_everything() -> None:
    text = (ROOT / "requirements/dev.txt").read_text()
    pins = re.findall(r"^[a-z0-9_.-]+==", text, re.MULTILINE | re.IGNORECASE)
    assert len(pins) > 30
    assert text.count("--hash=") >= len(pins)


@pytest.mark.parametrize(
    "command",
    [
        "import rooftop",
        "from rooftop.cli import run; run(['--help'])",
        "from rooftop.cli import run; run(['--version'])",
    ],
)
def test_starting_up_is_light(command: str) -> None:
    code = f"import sys; sys.path.insert(0, 'src'); {command}; bad = {{'numpy', 'rich', 'sympy'}} & set(sys.modules); assert not bad, bad"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_public_names_exist() -> None:
    import rooftop

    for name in rooftop.__all__:
        assert getattr(rooftop, name) is not None
    assert set(rooftop.__all__) <= set(dir(rooftop))
    with pytest.raises(AttributeError):
        _ = rooftop.nonsense
