"""Work that a machine is designed for: `train MODEL NAME=VALUE ...` and `serve MODEL NAME=VALUE ...`, with weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rooftop.codesign._scenario import OPTIONS, Scenario, canonical, changed, reader, resolved
from rooftop.codesign._values import parse_vary
from rooftop.codesign._ways import changed_model
from rooftop.errors import InputError
from rooftop.hardware import Chip, Slice
from rooftop.transformer import architecture
from rooftop.units import parse_count

_ASKS = {"train": "plan", "plan": "plan", "serve": "serve"}
#: Options that are about money or about a chip of today.
_NOT_HERE = ("price", "usd", "calibration")


@dataclass(frozen=True, slots=True)
class Work:
    """One kind of work. scenario: the question, on a slice that stands for none. weight: share of the time of the machine that
    others are compared to.
    """

    text: str
    scenario: Scenario
    weight: float

    @property
    def unit(self) -> str:
        return "tokens/s" if self.scenario.ask == "plan" else "requests/s"


def works(texts: Sequence[str], chip: Chip) -> tuple[Work, ...]:
    """Read works; their weights add up to 1 then. `chip`: whose dtypes may be asked for. Raises InputError."""
    if not texts:
        raise InputError(
            "a machine needs work to be designed for; give one, such as --work 'train llama-3-70b batch=4M'",
            field="work",
        )
    read = [_work(text, chip) for text in texts]
    total = sum(w.weight for w in read)
    return tuple(replace(w, weight=w.weight / total) for w in read)


def _work(text: str, chip: Chip) -> Work:
    words = text.split()
    if len(words) < 2 or words[0] not in _ASKS or len(text) > 2000:
        raise InputError(
            f"--work {text[:60]!r} is not train or serve, a model, and NAME=VALUE; write one such as 'serve llama-3-70b tpot=30ms'",
            field="work",
        )
    scenario = Scenario(_ASKS[words[0]], architecture(words[1]), Slice(chip.name, chip, ()))
    weight = 1.0
    for word in words[2:]:
        name, equals, value = word.partition("=")
        if not equals or not value:
            raise InputError(f"--work: {word[:40]!r} is not NAME=VALUE; write such as batch=4M", field="work")
        if name == "weight":
            weight = parse_count(value, "weight")
            if not 0 < weight < 1e9:
                raise InputError(f"--work: weight={value[:20]} is out of range; give a number above 0", field="work")
            continue
        if name == "attention":
            scenario = changed_model(scenario, value)
            continue
        full = canonical(scenario, name)
        if full in _NOT_HERE or not (full in OPTIONS[scenario.ask] or full.startswith(("model.", "mesh."))):
            raise InputError(
                f"--work: {name} is none of the work's numbers; give options of {words[0]}, model.NAME, mesh.AXIS, or weight",
                field="work",
            )
        ask = scenario.ask
        vary = parse_vary(f"{full}={value}", lambda n, ask=ask: reader(n, ask))  # type: ignore[misc]
        if len(vary.values) != 1:
            raise InputError(f"--work: {word[:40]!r} has {len(vary.values)} values; give one", field="work")
        scenario = changed(scenario, {full: resolved(scenario, full, vary.values[0])})
    return Work(text, scenario, weight)
