"""How each kind of result shows itself in Python: as a terminal has it, as `--json` has it, as a cell of a notebook."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rooftop import (
    codesign,
    formula,
    frameworks,
    hardware,
    inference,
    lower,
    measure,
    profiles,
    roofline,
    simulation,
    training,
)
from rooftop import figures as drawn
from rooftop.transformer import Model
from rooftop.views._codesign import swept_json, swept_text
from rooftop.views._compare import compared_json, compared_text
from rooftop.views._design import design_json, design_text
from rooftop.views._explain import explanation_json, explanation_text
from rooftop.views._hardware import chip_json, chip_text, slice_json, slice_text
from rooftop.views._html import body_html
from rooftop.views._import import import_json, import_text
from rooftop.views._model import model_json, model_text
from rooftop.views._plan import (
    answer_json,
    answer_text,
    comparison_json,
    comparison_text,
    curve_json,
    curve_text,
    laws_json,
    laws_text,
)
from rooftop.views._program import exported_json, exported_text, program_json, program_text
from rooftop.views._roofline import (
    collective_json,
    collective_text,
    matmul_json,
    matmul_text,
    roofline_json,
    roofline_text,
)
from rooftop.views._serve import pools_json, pools_text, serving_json, serving_text
from rooftop.views._shapes import shapes_json, shapes_text
from rooftop.views._simulate import outcome_json, outcome_text
from rooftop.views._solve import solved_json, solved_text
from rooftop.views._trace import trace_json, trace_text, versus_json, versus_text
from rooftop.views._validate import validation_json, validation_text
from rooftop.views._whatif import whatif_json, whatif_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from rooftop.figures import Figure

#: (text, data, figures) of a result.
View = tuple[Callable[[Any], "RenderableType"], Callable[[Any], Mapping[str, Any]], Callable[[Any], "Sequence[Figure]"]]


def _none(result: Any) -> Sequence[Figure]:
    return ()


VIEWS: dict[type, View] = {
    training.Answer: (answer_text, answer_json, drawn.training_figures),
    training.Curve: (curve_text, curve_json, lambda r: [drawn.scaling_curve(r)]),
    training.Comparison: (comparison_text, comparison_json, _none),
    training.ComputeOptimal: (laws_text, laws_json, _none),
    inference.Answer: (serving_text, serving_json, drawn.serving_figures),
    inference.Pools: (pools_text, pools_json, _none),
    simulation.Outcome: (
        lambda r: outcome_text([r], None),
        lambda r: outcome_json([r], None),
        drawn.simulation_figures,
    ),
    simulation.Rate: (
        lambda r: outcome_text([r.outcome], r),
        lambda r: outcome_json([r.outcome], r),
        lambda r: drawn.simulation_figures(r.outcome),
    ),
    Model: (
        lambda r: model_text(r.architecture, r.seq),
        lambda r: model_json(r.architecture, r.seq),
        _none,
    ),
    hardware.Chip: (chip_text, chip_json, _none),
    hardware.Slice: (slice_text, slice_json, _none),
    roofline.OpRoofline: (roofline_text, roofline_json, lambda r: [drawn.op_chart(r), *drawn.systolic_figures(r)]),
    roofline.MatmulTime: (matmul_text, matmul_json, drawn.matmul_figures),
    roofline.CollectiveTime: (collective_text, collective_json, drawn.collective_figures),
    profiles.Report: (trace_text, trace_json, lambda r: drawn.trace_figures(r, ())),
    profiles.Versus: (versus_text, versus_json, _none),
    measure.Validation: (lambda r: validation_text(r, rows=False), validation_json, _none),
    codesign.Comparison: (compared_text, compared_json, _none),
    codesign.Solved: (solved_text, solved_json, drawn.solved_figures),
    codesign.Whatif: (whatif_text, whatif_json, drawn.whatif_figures),
    codesign.Design: (design_text, design_json, _none),
    codesign.Shapes: (lambda r: shapes_text(r, 12), shapes_json, _none),
    codesign.Swept: (lambda r: swept_text(r, None), swept_json, drawn.sweep_figures),
    lower.ProgramTime: (program_text, program_json, _none),
    frameworks.Exported: (exported_text, exported_json, _none),
    frameworks.Imported: (import_text, import_json, _none),
    formula.Explanation: (explanation_text, explanation_json, _none),
}


def view_of(result: Any) -> View:
    """How a kind of result is shown."""
    if type(result) in VIEWS:
        return VIEWS[type(result)]
    from rooftop.views._check import check_json, check_text  # brings JAX along

    return check_text, check_json, _none


def result_text(result: Any) -> str:
    """What the command prints, 110 columns wide, without colour."""
    from rich.console import Console

    out = io.StringIO()
    Console(file=out, width=110, highlight=False, color_system=None).print(view_of(result)[0](result))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()).rstrip("\n")


def result_html(result: Any) -> str:
    """Figures of a result, its tables folded away; the tables alone where there are no figures or plotly is not installed."""
    text, _, figures = view_of(result)
    shown = figures(result)
    with_figures = drawn.notebook_html(shown, body_html(text(result))) if shown else None
    return with_figures or f'<div class="rt-notebook">{body_html(text(result), folded=False)}</div>'
