"""Results as figures, the same for the page, reports, notebooks and documentation."""

from rooftop.figures._embed import asset, asset_names, figure_html, notebook_html, plotly_script, scripts
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
from rooftop.figures._sweep import solved_figures, sweep_figures
from rooftop.figures._systolic import busy, pass_steps, systolic_figures
from rooftop.figures._topology import Hop, Side, collective_figures, exchange, matmul_figures, sides_of, topology_chart
from rooftop.figures._trace import trace_figures
from rooftop.figures._training import (
    memory_bars,
    network_of_step,
    roofline_of_step,
    scaling_curve,
    time_bars,
    timeline_chart,
    training_figures,
)
from rooftop.figures._whatif import shares_chart, tornado_chart, whatif_figures

__all__ = [
    "AXES",
    "COLOURS",
    "SERIES",
    "Dot",
    "Figure",
    "Hop",
    "Side",
    "asset",
    "asset_names",
    "busy",
    "collective_figures",
    "exchange",
    "figure_html",
    "figure_json",
    "frontier_chart",
    "latency_chart",
    "matmul_figures",
    "memory_bars",
    "memory_by_batch",
    "network_of_step",
    "notebook_html",
    "op_chart",
    "pass_steps",
    "plotly_script",
    "roofline_chart",
    "roofline_of_generation",
    "roofline_of_step",
    "scaling_curve",
    "scripts",
    "serving_figures",
    "shares_chart",
    "sides_of",
    "simulation_chart",
    "simulation_figures",
    "solved_figures",
    "sweep_figures",
    "systolic_figures",
    "time_bars",
    "timeline_chart",
    "topology_chart",
    "tornado_chart",
    "trace_figures",
    "training_figures",
    "whatif_figures",
]
