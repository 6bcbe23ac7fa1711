"""Every command and every piece of Python in the documentation is run, and what it shows is what comes out."""

from __future__ import annotations

import doctest
import re
import shlex
import textwrap
from pathlib import Path

import pytest

from rooftop.cli import COMMANDS, run

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(
    r"(?:<!-- exit: (\d+) -->\n)?^ *(```|~~~)(console|python)\n(.*?)^ *\2", re.MULTILINE | re.DOTALL
)  # also those inside answers of exercises, which are indented
# the page on the notation has a test of its own, which knows its examples
BLOCKS = [
    pytest.param(
        match[3],
        textwrap.dedent(match[4]),
        int(match[1] or 0),
        id=f"{page.relative_to(ROOT)}:{page.read_text()[: match.start()].count(chr(10)) + 1}",
    )
    for page in PAGES
    if page.name != "notation.md"
    for match in FENCE.finditer(page.read_text())
]


@pytest.mark.parametrize(("kind", "text", "status"), BLOCKS)
def test_block(kind: str, text: str, status: int, capsys: pytest.CaptureFixture[str]) -> None:
    if "rooftop trace" in text or "rooftop.profiles" in text:
        pytest.importorskip("msgspec", reason="comes with rooftop[profiles]")
        pytest.importorskip("google.protobuf", reason="comes with rooftop[profiles]")
    if kind == "python" and text.lstrip().startswith(">>>"):
        examples = doctest.DocTestParser().get_doctest(text, {}, "docs", None, 0)
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
        result = runner.run(examples)
        assert result.attempted > 0
        assert result.failed == 0, capsys.readouterr().out
        return
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


def test_every_command_is_documented() -> None:
    reference = (ROOT / "docs/reference/commands.md").read_text()
    readme = (ROOT / "README.md").read_text()
    for name in COMMANDS:
        assert f"```{{rooftop}} {name} --help\n" in reference
        assert f"`rooftop {name} " in readme


def test_the_first_commands_of_the_readme() -> None:
    """What the README says first is what scripts/test runs in an empty environment, and how it is itself called."""
    readme = (ROOT / "README.md").read_text()
    first, second = re.findall(r"^    (\S.*)$", readme, re.MULTILINE)[:2]
    install, _, job = first.rpartition(" && ")
    assert install == "python3 -m venv .venv && .venv/bin/pip install ."
    assert job.removeprefix(".venv/bin/") in (ROOT / "scripts/test").read_text()
    assert second == "./scripts/test"


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"


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


def test_model_file_examples(tmp_path: Path) -> None:
    from rooftop.transformer import architecture, parameters

    page = (ROOT / "docs/reference/models.md").read_text()
    (toml,) = re.findall(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (config,) = re.findall(r"^```json\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "mine.toml").write_text(toml)
    (tmp_path / "config.json").write_text(config)
    mine = architecture(str(tmp_path / "mine.toml"))
    d, d_ff, vocab = 6144, 24576, 51200
    attention = d * 96 * (64 + 8 + 8) + 64 * 96 * d
    assert parameters(mine).total == 2 * vocab * d + d + 48 * (attention + 2 * d * d_ff + 2 * d)
    read, known = architecture(str(tmp_path)), architecture("llama-3-8b")
    assert (read.stack, read.d_model, read.vocab, read.tied) == (known.stack, known.d_model, known.vocab, known.tied)


def test_every_family_and_number_is_documented() -> None:
    from rooftop.transformer._catalogue import _INLINE
    from rooftop.transformer._families import families

    page = (ROOT / "docs/reference/models.md").read_text()
    listed = page[page.index("## Families") : page.index("## The catalogue")]
    assert set(re.findall(r"`([^` ]+)`", listed)) - {"model_type"} == set(families())
    for name in _INLINE:
        assert f"`{name}`" in page
