"""A plan whose sizes are evaluated once, timed under one calibration after another: what fitting a calibration asks for."""

from __future__ import annotations

from dataclasses import replace

from rooftop.costing import MESH_AXES, PLACEMENT_ORDER, links_of
from rooftop.formula import Number
from rooftop.hardware import Chip
from rooftop.roofline import Calibration, Placement
from rooftop.training._estimate import local, moved
from rooftop.training._offload import crossings
from rooftop.training._plan import Plan, Problem, environment
from rooftop.training._step import Evaluated, states_of, step


class Prepared:
    """One plan of a problem. `expected` is the step that `estimate` would give under a calibration."""

    def __init__(self, problem: Problem, plan: Plan) -> None:
        self.problem, self.plan = problem, plan
        self._compiled = problem.structure(plan.choices)
        mesh: dict[str, Number] = {a: plan.mesh.get(a, 1) for a in MESH_AXES}
        axes, self._inner = environment(mesh, plan.sequences, self._compiled.kv_heads, dict(self._compiled.axes))
        self._placement = Placement(problem.dimensions, tuple(dict(f) for f in plan.factors), PLACEMENT_ORDER)
        self._values = {c.name: c.evaluate(axes, self._inner) for c in self._compiled.programs}
        self._states = states_of(self._compiled, self._values, plan.choices, self._inner["pipeline"])

    @property
    def chip(self) -> Chip:
        """The chip that the plan runs on."""
        return self.problem.slice.chip

    def expected(self, calibration: Calibration) -> float:
        """Seconds of a step under a calibration."""
        compiled, values = self._compiled, self._values
        links = links_of(self._placement, self._inner, compiled.groups, calibration, self.problem.copies)
        rates = replace(self.problem, calibration=calibration).rates
        evaluated = Evaluated(
            compiled,
            values,
            {c.name: local(c, values[c.name], rates) for c in compiled.programs},
            {c.name: moved(c, values[c.name], links, detail=False) for c in compiled.programs},
            crossings(compiled, values, self.plan.choices),
        )
        result = step(
            evaluated, rates, links, calibration.overlap, calibration.step_overhead, self.plan.choices,
            self.plan.microbatches, self._inner["pipeline"], None, self._states, detail=False,
        )  # fmt: skip
        return float(result.expected)
