"""Co-design: how answers move with model, plan, workload and hardware; what limits; what would be needed."""

from rooftop.codesign._answers import answer, planned, trained
from rooftop.codesign._attention import with_attention
from rooftop.codesign._budget import BUDGETS
from rooftop.codesign._compare import Alternative, Comparison, Overtakes, compare, crossings
from rooftop.codesign._derivatives import MEASURES, WORKLOAD, elasticities, hardware_numbers
from rooftop.codesign._domain import Domain, assumed
from rooftop.codesign._engine import ENGINES, Engine
from rooftop.codesign._inverse import WANTED, Region, Solved, Tried, solve
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

__all__ = [
    "ASKS",
    "BUDGETS",
    "ENGINES",
    "FIXED",
    "MEASURES",
    "WANTED",
    "WORKLOAD",
    "Alternative",
    "Comparison",
    "Domain",
    "Engine",
    "Move",
    "Need",
    "Overtakes",
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
    "answer",
    "assumed",
    "binding",
    "canonical",
    "changed",
    "compare",
    "crossings",
    "current",
    "elasticities",
    "friendly",
    "hardware_numbers",
    "model_numbers",
    "parameters",
    "parse_need",
    "parse_numbers",
    "parse_share",
    "parse_vary",
    "planned",
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
    "write_table",
]
