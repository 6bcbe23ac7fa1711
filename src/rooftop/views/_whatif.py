"""What-ifs: as tables, as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rooftop.codesign import Move, Sensitivity, Whatif, shown
from rooftop.views._terminal import bar, group, heading, lines, table

if TYPE_CHECKING:
    from rich.console import RenderableType

_KINDS = {"hardware": "Hardware", "model": "Model", "workload": "Workload"}


def whatif_json(found: Whatif) -> dict[str, Any]:
    """Under the keys of the rows of sweeps; changes are parts of the measure: 0.1 is a tenth more."""
    return {
        "of": found.scenario.ask,
        "model": found.scenario.model.name,
        "slice": found.scenario.slice.name,
        "measure": found.measure,
        "by": found.by,
        "base": found.base,
        "limits": [{"name": name, "share": share} for name, share in found.shares.items()],
        "numbers": [
            {
                "name": n.name,
                "kind": n.kind,
                "value": n.value,
                "elasticity": n.elasticities,
                "moves": [_move_json(found, m) for m in n.moves],
            }
            for n in found.numbers
        ],
        "assumptions": list(found.assumptions),
    }


def _move_json(found: Whatif, move: Move) -> dict[str, Any]:
    def of(row: dict[str, Any] | None) -> dict[str, Any] | None:
        if row is None:
            return None
        error = row.get("error") or ("does not fit" if row.get("fits") is False else None)
        return {"change": found.change(row), "row": None if row.get("error") else row, "error": error}

    return {"factor": move.factor, "value": move.value, "fixed": of(move.fixed), "best": of(move.best)}


def whatif_text(found: Whatif) -> RenderableType:
    """Where the time goes by hardware number; then every number: its slope, and what becomes of the answer some way off."""
    measure, base = found.measure, found.base
    scenario = found.scenario
    what = {"plan": "the best plan", "step": "this plan", "serve": "the best way to serve"}[scenario.ask]
    parts: list[RenderableType] = [
        heading(f"{scenario.model.name} on {scenario.slice.name}: what if a number of {what} were another"),
        table("", ["", ""], [
            [_title(measure), shown(measure, base[measure])],
            *([["bound", shown(measure, base[_bound(measure)])]] if _bound(measure) in base else []),
            ["what binds", str(base["bottleneck"])],
            ["mesh", str(base["mesh"])],
        ]),
    ]  # fmt: skip
    if found.shares:
        most = max(found.shares.values())
        rows = [[name, f"{share:.1%}", bar(share, most)] for name, share in found.shares.items() if share >= 5e-4]
        parts.append(table("What limits it, in order", ["", ">share of the time", ""], rows))
    for kind, title in _KINDS.items():
        some = [n for n in found.numbers if n.kind == kind]
        if some:
            parts.append(_numbers_table(found, title, some))
    parts.append(lines("", [*_gains(found), *_unanswered(found)]))
    parts.append(lines("Assumptions", found.assumptions))
    return group(*parts)


def _title(measure: str) -> str:
    return measure.replace(".", ", ").replace("_", " ")


def _bound(measure: str) -> str:
    return measure.replace(".expected", ".bound") if measure.endswith(".expected") else ""


def _numbers_table(found: Whatif, title: str, some: list[Sensitivity]) -> RenderableType:
    replanned = any(m.best is not None for n in some for m in n.moves)
    by = f"{found.by:g}"
    head = [title, ">value", ">slope", f">1/{by}x fixed", f">{by}x fixed"]
    head += [f">1/{by}x best", f">{by}x best"] if replanned else []
    rows = []
    for n in sorted(some, key=lambda n: -abs(n.elasticities.get(found.measure) or 0.0)):
        slope = n.elasticities.get(found.measure)
        value = int(n.value) if n.kind != "hardware" and n.value == int(n.value) else n.value
        row = [n.name, shown(n.name, value), "-" if slope is None else "0" if abs(slope) < 5e-4 else f"{slope:+.3f}"]
        row += [_told(found, m.fixed) for m in n.moves]
        row += [_told(found, m.best) for m in n.moves] if replanned else []
        rows.append(row)
    return table("", head, rows)


def _told(found: Whatif, row: dict[str, Any] | None) -> str:
    change = found.change(row)
    if change is None:
        return "no room" if row is not None and row.get("fits") is False else "no answer"
    return _change(change)


def _change(change: float) -> str:
    return "0 %" if abs(change) < 5e-4 else f"{change:+.1%}"


def _gains(found: Whatif) -> list[str]:
    """The numbers of hardware whose change helps the best most."""
    better = -1.0 if "seconds" in found.measure.split("per_second")[0] or found.measure.startswith("usd") else 1.0
    gains = [
        (better * change, n.name, m)
        for n in found.numbers if n.kind == "hardware"
        for m in n.moves
        if (change := found.change(m.best or m.fixed)) is not None and better * change > 1e-3
    ]  # fmt: skip
    gains.sort(key=lambda gain: -gain[0])
    return [
        f"{m.factor:g}x {name} ({shown(name, m.value)}): {_title(found.measure)} {_change(better * gain)}"
        + ("" if m.best is None or m.best.get("mesh") == found.base["mesh"] else f", on {m.best['mesh']}")
        for gain, name, m in gains[:3]
    ]


def _unanswered(found: Whatif) -> list[str]:
    why = [
        (n.name, m.factor, m.fixed.get("error") or "it does not fit") for n in found.numbers for m in n.moves
        if found.change(m.fixed) is None
    ]  # fmt: skip
    if not why:
        return []
    name, factor, text = why[0]
    return [f"no answer at {len(why)} values for what is kept; the first, {factor:g}x {name}: {text}"]
