"""Results as figures, the same for the page, reports, notebooks and documentation."""

from rooftop.figures._embed import asset, figure_html, notebook_html, plotly_script, scripts
from rooftop.figures._figure import AXES, COLOURS, SERIES, Figure, figure_json
from rooftop.figures._roofline import Dot, op_chart, roofline_chart
from rooftop.figures._serving import (
    frontier_chart,
    latency_chart,
    memory_by_batch,
    roofline_of_generation,
    serving_figures,
    simulation_chart,
    simulation_figures,
)
from rooftop.figures._trace import trace_figures
from rooftop.figures._training import (
    memory_bars,
    roofline_of_step,
    scaling_curve,
    time_bars,
    timeline_chart,
    training_figures,
)

__all__ = [
    "AXES",
    "COLOURS",
    "SERIES",
    "Dot",
    "Figure",
    "asset",
    "figure_html",
    "figure_json",
    "frontier_chart",
    "latency_chart",
    "memory_bars",
    "memory_by_batch",
    "notebook_html",
    "op_chart",
    "plotly_script",
    "roofline_chart",
    "roofline_of_generation",
    "roofline_of_step",
    "scaling_curve",
    "scripts",
    "serving_figures",
    "simulation_chart",
    "simulation_figures",
    "time_bars",
    "timeline_chart",
    "trace_figures",
    "training_figures",
]
