"""Results of the Python interface as a notebook shows them: the page of `--html`, in a cell."""

from __future__ import annotations

from typing import Any

from rooftop import inference, simulation, training
from rooftop.figures import notebook_html, serving_figures, simulation_figures, training_figures
from rooftop.views._html import body_html
from rooftop.views._plan import answer_text
from rooftop.views._serve import serving_text
from rooftop.views._simulate import outcome_text


def result_html(result: Any) -> str | None:
    """Tables and figures of an answer; None for what has no figures, or where plotly is not installed."""
    if isinstance(result, training.Answer):
        return notebook_html(training_figures(result), body_html(answer_text(result)))
    if isinstance(result, inference.Answer):
        return notebook_html(serving_figures(result), body_html(serving_text(result)))
    if isinstance(result, simulation.Outcome):
        return notebook_html(simulation_figures(result), body_html(outcome_text([result], None)))
    return None
