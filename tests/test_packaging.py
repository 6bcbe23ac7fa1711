"""What ships, and what must not be in it."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parent.parent


#: What a checkout may hold beside the project, as .gitignore has it; only for machines without git.
GENERATED = {
    ".git",
    ".venv",
    "__pycache__",
    "dist",
    "build",
    "_build",
    ".hypothesis",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
}


def tracked() -> list[Path]:
    """All files of the project: those that git tracks, or, without git, all that are not generated."""
    try:
        listing = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return [
            path for path in ROOT.rglob("*") if path.is_file() and not GENERATED & set(path.relative_to(ROOT).parts)
        ]
    return [ROOT / line for line in listing.stdout.splitlines()]


def test_no_registry_hosts_and_no_machine_paths() -> None:
    forbidden = re.compile(
        "|".join(
            ["py" + r"pi\.org", "python" + "hosted", "npm" + r"js\.", r"(?<![\w/])/wo" + r"rk/", "/opt/" + "wheels"]
        )
    )
    found = []
    files = tracked()
    assert len(files) > 50
    for path in files:
        if path.is_file() and path.suffix not in (".png",):
            found += [
                f"{path}: {m.group()}" for m in forbidden.finditer(path.read_text(encoding="utf-8", errors="ignore"))
            ]
    assert not found


def test_every_listed_command_exists_and_every_command_is_listed() -> None:
    from rooftop.cli import COMMANDS

    for name in COMMANDS:
        command = importlib.import_module(f"rooftop.cli._{name}").command
        assert command.name == name
        assert command.help
        assert "as_json" in {param.name for param in command.params} or name in ("web", "completion")
    modules = {path.stem[1:] for path in (ROOT / "src/rooftop/cli").glob("_[a-z]*.py")}
    assert {m for m in modules if hasattr(importlib.import_module(f"rooftop.cli._{m}"), "command")} == set(COMMANDS)


def test_the_lock_has_hashes_for_everything() -> None:
    text = (ROOT / "requirements/dev.txt").read_text()
    pins = re.findall(r"^[a-z0-9_.-]+==", text, re.MULTILINE | re.IGNORECASE)
    assert len(pins) > 30
    assert text.count("--hash=") >= len(pins)


def test_the_lock_meets_the_project() -> None:
    """Every direct dependency is locked at a version that pyproject.toml allows."""
    text = (ROOT / "requirements/dev.txt").read_text()
    locked = {
        name.lower(): Version(version) for name, version in re.findall(r"^([\w.-]+)==([\w.]+)", text, re.MULTILINE)
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    for name, extra in project["project"]["optional-dependencies"].items():
        if name not in ("hub", "tpu", "gpu"):  # not needed for any check
            wanted += extra
    for requirement in map(Requirement, wanted):
        assert requirement.specifier.contains(locked[requirement.name.lower()]), requirement


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    from hatchling.builders.wheel import WheelBuilder

    folder = tmp_path_factory.mktemp("wheel")
    (path,) = WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    with zipfile.ZipFile(path) as archive:
        yield archive


def test_the_wheel_holds_every_module_and_data_file(wheel: zipfile.ZipFile) -> None:
    source = ROOT / "src"
    wanted = {
        str(path.relative_to(source))
        for path in (source / "rooftop").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert sum(name.endswith(".toml") for name in wanted) >= 19
    assert "rooftop/py.typed" in wanted
    shipped = {name for name in wheel.namelist() if not name.split("/")[0].endswith(".dist-info")}
    assert shipped == wanted


def test_the_wheel_says_what_it_is(wheel: zipfile.ZipFile) -> None:
    import rooftop

    names = {name.partition(".dist-info/")[2]: name for name in wheel.namelist() if ".dist-info/" in name}
    metadata = wheel.read(names["METADATA"]).decode()
    for line in (f"Version: {rooftop.__version__}", "License-Expression: Apache-2.0", "Requires-Python: >=3.11"):
        assert f"\n{line}\n" in metadata
    assert "rooftop = rooftop.cli:main" in wheel.read(names["entry_points.txt"]).decode()
    assert "Apache License" in wheel.read(names["licenses/LICENSE"]).decode()


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


def test_the_container_copies_what_the_wheel_needs_and_runs_unprivileged() -> None:
    text = (ROOT / "Containerfile").read_text()
    assert re.search(r"^ARG PYTHON=3\.\d+\.\d+-slim", text, re.MULTILINE)  # one version, named once
    assert text.index("USER rooftop") < text.index("ENTRYPOINT")
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = [word for line in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE) for word in line.split()]
    assert sorted(copied) == sorted(kept)
    assert all((ROOT / name).exists() for name in kept)
    (extras,) = re.findall(r"'\.\[([\w,]+)\]'", text)
    assert {*extras.split(",")} <= {
        *tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    }


def test_a_release_is_checked_and_holds_no_token() -> None:
    release = (ROOT / ".github/workflows/release.yml").read_text()
    assert "needs: [checks, build]" in release
    assert "id-token: write" in release
    assert "secrets." not in release
    assert "./scripts/test" in (ROOT / ".github/workflows/ci.yml").read_text()
    version = re.search(r'^__version__ = "(.*)"$', (ROOT / "src/rooftop/__init__.py").read_text(), re.MULTILINE)
    assert version is not None  # as the workflow reads it
