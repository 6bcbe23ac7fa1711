"""What a shell completes, and the script that lets it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import BashComplete

from rooftop.cli import group, run


def completed(*words: str) -> list[str]:
    found = BashComplete(group, {}, "rooftop", "_ROOFTOP_COMPLETE").get_completions(list(words[:-1]), words[-1])
    return [f"{item.type}:{item.value}" for item in found]


@pytest.mark.parametrize(
    ("words", "some"),
    [
        (("wha",), "plain:whatif"),
        (("plan", "llama-3-7"), "plain:llama-3-70b"),
        (("model", "llama-3-8b", "deepseek-v"), "plain:deepseek-v3"),
        (("plan", "llama-3-8b", "--on", "v5p:"), "plain:v5p:16x20x28"),
        (("plan", "llama-3-8b", "--on", "h1"), "plain:h100"),
        (("chip", "v5"), "plain:v5e"),
        (("serve", "llama-3-70b", "--draft", "llama-3-8"), "plain:llama-3-8b"),
        (("collective", "all-g"), "plain:all-gather"),
        (("step", "llama-3-8b", "--remat", "se"), "plain:selective"),
        (("serve", "./conf"), "file:./conf"),
        (("export", "plan.json", "--to", "max"), "plain:maxtext"),
    ],
)
def test_names_are_completed(words: tuple[str, ...], some: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_ROOFTOP_COMPLETE", "bash_complete")  # as a shell that asks
    assert some in completed(*words)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_there_is_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == 0
    assert "_ROOFTOP_COMPLETE" in capsys.readouterr().out


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_a_line(tmp_path: Path) -> None:
    command = tmp_path / "rooftop"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m rooftop "$@"\n')
    command.chmod(0o755)
    script = 'eval "$(rooftop completion bash)"; COMP_WORDS=(rooftop chip v5); COMP_CWORD=2; _rooftop_completion rooftop; echo "${COMPREPLY[@]}"'
    paths = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(Path(__file__).parent.parent / "src")}
    shown = subprocess.run(
        ["bash", "-c", script], env={**os.environ, **paths}, capture_output=True, text=True, check=True
    )
    assert shown.stdout.split() == ["v5e", "v5p"]
