"""Every command and every piece of Python in the documentation is run, and what it shows is what comes out."""

from __future__ import annotations

import doctest
import re
import shlex
from pathlib import Path

import pytest

from rooftop.cli import run

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"(?:<!-- exit: (\d+) -->\n)?^```(console|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
# the page on the notation has a test of its own, which knows its examples
BLOCKS = [
    pytest.param(
        match[2],
        match[3],
        int(match[1] or 0),
        id=f"{page.relative_to(ROOT)}:{page.read_text()[: match.start()].count(chr(10)) + 1}",
    )
    for page in PAGES
    if page.name != "notation.md"
    for match in FENCE.finditer(page.read_text())
]


@pytest.mark.parametrize(("kind", "text", "status"), BLOCKS)
def test_block(kind: str, text: str, status: int, capsys: pytest.CaptureFixture[str]) -> None:
    if kind == "python":
        if text.startswith(">>>"):
            run_doctest(text)
        else:
            exec(compile(text, "<docs>", "exec"), {})
        return
    commands = re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]
    assert commands, "a console block has lines that start with '$ '"
    for command in commands:
        line, _, shown = command.partition("\n")
        words = shlex.split(line)
        assert words[0] == "rooftop", line
        capsys.readouterr()
        assert run(words[1:]) == status, line
        printed = capsys.readouterr()
        if shown.strip():
            assert matches(shown, printed.out + printed.err), (
                f"{line} printed\n{printed.out}{printed.err}\ninstead of\n{shown}"
            )


def run_doctest(text: str) -> None:
    """Run `>>>` examples and compare what they show."""
    story: list[str] = []
    test = doctest.DocTestParser().get_doctest(text, {}, "docs", None, 0)
    assert test.examples
    doctest.DocTestRunner(verbose=False).run(test, out=story.append)
    assert not story, "".join(story)


def test_the_example_of_the_package() -> None:
    import rooftop

    assert rooftop.__doc__
    run_doctest(rooftop.__doc__)


def test_a_wrong_example_is_noticed() -> None:
    with pytest.raises(AssertionError, match="Expected"):
        run_doctest(">>> 1 + 1\n3\n")
    assert not matches("one\nthree", "one\ntwo")
    assert matches("one\n...", "one\ntwo\nthree")


def matches(shown: str, printed: str) -> bool:
    """Whether the lines shown are those printed; `...` stands for anything."""
    lines = [line.strip() for line in shown.strip().splitlines()]
    pattern = r"\n".join(".*" if line == "..." else ".*".join(map(re.escape, line.split("..."))) for line in lines)
    return (
        re.fullmatch(pattern, "\n".join(line.strip() for line in printed.strip().splitlines()), re.DOTALL) is not None
    )


def test_the_pages_have_blocks() -> None:
    assert len(BLOCKS) > 8


def test_hardware_file_examples(tmp_path: Path) -> None:
    from rooftop.hardware import slice_of

    page = (ROOT / "docs/reference/hardware-files.md").read_text()
    examples = re.findall(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(examples) == 2
    for number, text in enumerate(examples):
        (tmp_path / f"chip{number}.toml").write_text(text)
    assert slice_of(str(tmp_path / "chip0.toml")).chip.hbm_bandwidth == 2.4e12
    assert slice_of(f"{tmp_path / 'chip0.toml'}:16").chips == 16
    mine = slice_of(str(tmp_path / "chip1.toml"))
    assert mine.chips == 64
    assert mine.levels[1].bandwidth == 6.25e9 / 2
