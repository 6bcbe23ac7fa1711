"""Figures draw what was computed, and reports need nothing but themselves."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

import rooftop as rt
from rooftop import figures
from rooftop.cli import run
from rooftop.errors import MissingExtra
from rooftop.figures import (
    AXES,
    COLOURS,
    SERIES,
    Figure,
    Side,
    exchange,
    figure_json,
    serving_figures,
    simulation_figures,
    training_figures,
)
from rooftop.inference import Scene
from rooftop.training import step_kernels

go = pytest.importorskip("plotly.graph_objects", reason="comes with rooftop[figures]")


def by_name(figures: list[Figure]) -> dict[str, Figure]:
    return {figure.name: figure for figure in figures}


def checked(figures: list[Figure]) -> dict[str, Figure]:
    """Plotly accepts every trace and layout; every figure has words and numbers, and is JSON."""
    for figure in figures:
        go.Figure(data=list(figure.data), layout=dict(figure.layout))
        assert figure.data or figure.scene
        assert figure.rows
        assert {len(row) for row in figure.rows} == {len(figure.columns)}
        assert len(figure.caption) > 20
        json.dumps(figure_json(figure), allow_nan=False)
    return by_name(figures)


@pytest.mark.parametrize("remat", ["none", "selective", "full"])
def test_kernels_add_up_to_the_computing_parts_of_a_step(remat: str) -> None:
    best = rt.plan("llama-3-8b", on="h100:64", batch=1e6, fix={"pipeline": 1}, remat=(remat,)).best
    listed = sum(k.count * k.expected for k in step_kernels(best))
    assert listed == pytest.approx(sum(float(p.seconds) for p in best.step.parts if p.kind == "compute"))
    assert all(k.bound <= k.expected for k in step_kernels(best))


def test_kernels_of_a_generate_step_add_up() -> None:
    p = rt.serve("llama-3-8b", on="h100:2", batches=(64,)).best
    listed = sum(k.count * k.expected for k in Scene(p.problem, p.at).kernels(p.batch))
    assert listed == pytest.approx(sum(float(x.seconds) for x in p.generate.step.parts if x.kind == "compute"))


def test_training_figures_show_the_answer() -> None:
    answer = rt.plan("llama-3-8b", on="h100:64", batch=1e6, fix={"pipeline": 4})
    found = checked(training_figures(answer))
    step = float(answer.best.step.expected)
    lanes: dict[str, float] = {}
    for lane, _, _, start, seconds in found["timeline"].rows:
        if start is not None:
            lanes[lane] = lanes.get(lane, 0.0) + seconds
    assert list(lanes) == [f"stage {n}" for n in range(4)] or set(lanes) == {f"stage {n}" for n in range(4)}
    assert all(seconds == pytest.approx(step) for seconds in lanes.values())
    first = [row for row in found["memory"].rows if row[0].startswith("1. ")]
    assert sum(row[2] for row in first) == pytest.approx(float(answer.best.step.memory_bytes))
    exposed = [row[4] for row in found["time"].rows if row[0].startswith("1. ")]
    assert sum(exposed) == pytest.approx(step)
    for trace in found["roofline"].data:
        if trace["mode"] == "markers":
            for x, y in zip(trace["x"], trace["y"], strict=True):
                roof = min(answer.best.peak, x * answer.best.problem.slice.chip.hbm_bandwidth)
                assert y <= roof * 1.0001


def test_serving_and_simulation_figures() -> None:
    answer = rt.serve("llama-3-8b", on="h100:1")
    found = checked(serving_figures(answer))
    assert [row[0] for row in found["frontier"].rows] == [p.batch for p in answer.points]
    outcome = rt.simulate("llama-3-8b", "h100:1", "poisson:rate=4,requests=200,input=500,output=50")
    found = checked(simulation_figures(outcome))
    quantiles = [row[2] for row in found["latency"].rows if row[0] == "first token"]
    assert quantiles == sorted(quantiles)


def luminance(colour: str) -> float:
    def linear(c: float) -> float:
        return c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4

    r, g, b = (linear(int(colour[i : i + 2], 16) / 255) for i in (1, 3, 5))
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def test_colours_are_seen_on_light_and_on_dark() -> None:
    dark = luminance("#14181f")
    for colour in {*COLOURS.values(), *AXES.values(), *SERIES}:
        assert 1.05 / (luminance(colour) + 0.05) >= 3, colour
        assert (luminance(colour) + 0.05) / (dark + 0.05) >= 3, colour
    assert len(set(AXES.values())) == len(AXES)


COMMANDS: list[list[str]] = [
    ["plan", "llama-3-8b", "--on", "v5e:4x4", "--batch", "1M"],
    ["plan", "llama-3-8b", "--on", "h100", "--batch", "1M", "--scale", "8..64"],
    ["serve", "llama-3-8b", "--on", "h100:1"],
    ["roofline", "bf16[B=512, D=8192] * bf16[D, F=28672] -> bf16[B, F]", "--on", "v5e"],
]


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_reports_need_nothing_but_themselves(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "report.html"
    assert run([*words, "--html", str(path)]) == 0
    printed = capsys.readouterr().out
    page = path.read_text(encoding="utf-8")
    assert not re.search(
        r"<(?:link|img|iframe|script[^>]*src)", re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    )
    assert "default-src 'none'" in page
    drawn = [json.loads(text) for text in re.findall(r'<script type="application/json">(.*?)</script>', page)]
    assert drawn
    assert all(figure["data"] or figure["scene"] for figure in drawn)
    assert "<table>" in page
    assert printed.splitlines()[0].strip()[:20] in page.replace("&lt;", "<").replace("&gt;", ">")


def test_reports_say_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from rooftop.figures import plotly_script

    def absent(package: str) -> Any:
        raise ModuleNotFoundError(package)

    plotly_script.cache_clear()
    monkeypatch.setattr("importlib.resources.files", absent)
    with pytest.raises(MissingExtra, match=r"rooftop\[figures\]"):
        plotly_script()
    monkeypatch.undo()
    monkeypatch.setenv("ROOFTOP_BROWSER", "no-such-browser")
    assert run(["chip", "v5e", "--pdf", str(tmp_path / "a.pdf")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("rooftop: --pdf: no Chromium")
    assert error.count("\n") == 1


def test_a_report_is_printed(tmp_path: Path) -> None:
    from rooftop.views._pdf import browser

    if browser() is None:
        pytest.skip("no Chromium is installed")
    path = tmp_path / "report.pdf"
    assert run(["serve", "llama-3-8b", "--on", "h100:1", "--batch", "1,8", "--pdf", str(path)]) == 0
    assert path.read_bytes().startswith(b"%PDF")
    assert path.stat().st_size > 20_000


def test_results_draw_themselves_in_notebooks() -> None:
    from rooftop.figures import _embed

    _embed._shown.clear()
    answer = rt.serve("llama-3-8b", on="h100:1", batches=(1, 8))
    first, second = answer._repr_html_(), answer._repr_html_()
    assert first is not None
    assert second is not None
    assert len(first) > 1_000_000 > len(second)  # what draws is in the first only
    for text in (first, second):
        assert "Latency against throughput" in text
        assert "All numbers" in text
    assert rt.plan("llama-3-8b", on="v5e:4x4", batch=1e6)._repr_html_()


SIDES = [
    [Side(8, True, True, 8, 1)],
    [Side(7, True, False, 7, 1)],
    [Side(8, True, False, 4, 2)],
    [Side(2, True, False, 2, 1)],
    [Side(6, False, False, 6, 1)],
    [Side(4, True, True, 4, 1), Side(3, True, False, 3, 1)],
    [Side(4, False, False, 2, 1), Side(4, False, False, 4, 1)],
    [Side(4, True, True, 4, 1), Side(1, True, False, 1, 1), Side(4, True, False, 2, 1)],
]


def groups_of(sides: list[Side]) -> dict[int, set[int]]:
    """By brute force: the chips that differ from a chip only within the group of each side."""

    def places(chip: int) -> list[int]:
        result = []
        for side in sides:
            result.append(chip % side.size)
            chip //= side.size
        return result

    def same(a: int, b: int) -> bool:
        return all(
            x // (s.members * s.stride) == y // (s.members * s.stride) and x % s.stride == y % s.stride
            for s, x, y in zip(sides, places(a), places(b), strict=True)
        )

    chips = range(math.prod(s.size for s in sides))
    return {a: {b for b in chips if same(a, b)} for a in chips}


@pytest.mark.parametrize("sides", SIDES, ids=str)
def test_an_all_gather_brings_every_piece_to_every_chip_of_its_group(sides: list[Side]) -> None:
    has = {chip: {chip} for chip in groups_of(sides)}
    for hops in exchange("all_gather", sides):
        arriving: dict[int, set[int]] = {}
        for hop in hops:
            assert hop.piece in has[hop.source], "a chip passes on what it has"
            assert hop.piece not in has[hop.target], "nothing is sent twice"
            assert (hop.path[0], hop.path[-1]) == (hop.source, hop.target)
            arriving.setdefault(hop.target, set()).add(hop.piece)
        for chip, pieces in arriving.items():
            has[chip] |= pieces
    assert has == groups_of(sides)


@pytest.mark.parametrize("sides", SIDES, ids=str)
def test_a_reduce_scatter_adds_every_part_once(sides: list[Side]) -> None:
    groups = groups_of(sides)
    # partial sums: (chip, piece) -> whose parts are in it
    sums = {(chip, piece): {chip} for chip, members in groups.items() for piece in members}
    for hops in exchange("reduce_scatter", sides):
        moved = [(hop, sums[hop.source, hop.piece]) for hop in hops]
        for hop, parts in moved:
            assert not sums[hop.target, hop.piece] & parts
            sums[hop.target, hop.piece] = sums[hop.target, hop.piece] | parts
    assert all(sums[chip, chip] == members for chip, members in groups.items())


@pytest.mark.parametrize(
    ("where", "axes"), [("v5e:16x16", "X=16"), ("v5e:4x8", "X=8"), ("v5p:4x4x4", "X=4"), ("h100:8", "X=8")]
)
def test_a_gather_takes_as_many_steps_as_hops(where: str, axes: str, capsys: pytest.CaptureFixture[str]) -> None:
    ways = int(axes.removeprefix("X="))
    found = rt.collective_time("all-gather", 1e6, {"X": ways}, rt.slice_of(where))
    assert found.placement is not None
    from rooftop.figures import sides_of

    steps = exchange("all_gather", sides_of(found.placement, ("X",)))
    switched = where.startswith("h100")
    assert len(steps) == (ways - 1 if switched else found.hops)


def test_large_slices_are_drawn_in_part() -> None:
    from rooftop.figures import network_of_step

    best = rt.plan("llama-3-8b", on="v5p:16x20x28", batch=4e6).best
    for figure in network_of_step(best):
        assert figure.scene is not None
        assert len(figure.scene["nodes"]) <= 512
        assert "alike" in figure.caption


@pytest.mark.parametrize(("rows", "inner", "columns"), [(6, 4, 4), (1, 3, 2), (5, 1, 4), (2, 7, 3)])
def test_a_systolic_array_does_each_product_once_and_in_order(rows: int, inner: int, columns: int) -> None:
    steps = figures.pass_steps(rows, inner, columns)
    when: dict[tuple[int, int, int], int] = {}
    for step in range(1, steps + 1):
        for product in figures.busy(step, rows, inner, columns):
            assert product not in when
            when[product] = step
    assert len(when) == rows * inner * columns
    assert not [*figures.busy(0, rows, inner, columns), *figures.busy(steps + 1, rows, inner, columns)]
    for (m, k, n), step in when.items():
        assert when.get((m, k + 1, n), step + 1) == step + 1  # the sum goes down one cell in a step
        assert when.get((m, k, n + 1), step + 1) == step + 1  # the input goes right one cell in a step


def test_the_matrix_unit_is_drawn_for_tpus() -> None:
    expression = "bf16[B=300, D=8192] * bf16[D, F=1000] -> bf16[B, F]"
    (drawn,) = figures.systolic_figures(rt.roofline_of(expression, on="v5e"))
    assert "128 x 128 cells" in drawn.caption
    assert "64 x 8 tiles, of whose cells 98% hold weights" in drawn.caption  # 1000 columns of 8 x 128
    assert "554 steps, 254 of them" in drawn.caption  # 300 + 128 + 128 - 2
    assert sum(row[1] for row in drawn.rows) == 6 * 4 * 4
    assert not figures.systolic_figures(rt.roofline_of(expression, on="h100"))
    assert not figures.systolic_figures(rt.roofline_of("bf16[B=8, D=8] -> bf16[B]", on="v5e"))
