"""Co-design: how answers move with model, plan, workload and hardware; what limits; what would be needed."""

from rooftop.codesign._answers import answer, planned, trained
from rooftop.codesign._attention import with_attention
from rooftop.codesign._budget import BUDGETS
from rooftop.codesign._compare import Alternative, Comparison, Overtakes, compare, crossings
from rooftop.codesign._costs import Cost, Costs, Ports, cost_of, costs, ports_of
from rooftop.codesign._derivatives import MEASURES, WORKLOAD, elasticities, hardware_numbers
from rooftop.codesign._design import Budget, Design, Machine, design
from rooftop.codesign._domain import Domain, assumed
from rooftop.codesign._engine import ENGINES, Engine
from rooftop.codesign._inverse import WANTED, Region, Solved, Tried, solve
from rooftop.codesign._machine import NETWORKS, parse_values
from rooftop.codesign._models import model_numbers, with_number
from rooftop.codesign._need import Need, parse_need
from rooftop.codesign._scenario import ASKS, Scenario, canonical, changed, current, parameters, reader, resolved
from rooftop.codesign._settled import Settled, settled
from rooftop.codesign._shapes import Shape, Shapes, friendly, parse_numbers, parse_share, shapes
from rooftop.codesign._shown import shown
from rooftop.codesign._sweep import Swept, binding, sweep
from rooftop.codesign._table import write_table
from rooftop.codesign._values import Value, Vary, parse_vary
from rooftop.codesign._ways import way, ways
from rooftop.codesign._whatif import FIXED, Move, Sensitivity, Whatif, whatif
from rooftop.codesign._words import told, vary_of
from rooftop.codesign._work import Work, works

__all__ = [
    "ASKS",
    "BUDGETS",
    "ENGINES",
    "FIXED",
    "MEASURES",
    "NETWORKS",
    "WANTED",
    "WORKLOAD",
    "Alternative",
    "Budget",
    "Comparison",
    "Cost",
    "Costs",
    "Design",
    "Domain",
    "Engine",
    "Machine",
    "Move",
    "Need",
    "Overtakes",
    "Ports",
    "Region",
    "Scenario",
    "Sensitivity",
    "Settled",
    "Shape",
    "Shapes",
    "Solved",
    "Swept",
    "Tried",
    "Value",
    "Vary",
    "Whatif",
    "Work",
    "answer",
    "assumed",
    "binding",
    "canonical",
    "changed",
    "compare",
    "cost_of",
    "costs",
    "crossings",
    "current",
    "design",
    "elasticities",
    "friendly",
    "hardware_numbers",
    "model_numbers",
    "parameters",
    "parse_need",
    "parse_numbers",
    "parse_share",
    "parse_values",
    "parse_vary",
    "planned",
    "ports_of",
    "reader",
    "resolved",
    "settled",
    "shapes",
    "shown",
    "solve",
    "sweep",
    "told",
    "trained",
    "vary_of",
    "way",
    "ways",
    "whatif",
    "with_attention",
    "with_number",
    "works",
    "write_table",
]
