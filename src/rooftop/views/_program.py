"""Programs op by op, as a terminal page and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rooftop.frameworks import Exported
from rooftop.lower import OpTime, ProgramTime
from rooftop.units import format_bytes, format_flops, format_seconds
from rooftop.views._terminal import bar, group, heading, lines, table

if TYPE_CHECKING:
    from rich.console import RenderableType


def program_json(result: ProgramTime, depth: int = 1) -> dict[str, Any]:
    """Totals, resources, scopes and every op; per device, seconds and bytes."""
    listing = result.listing
    return {
        "function": listing.name,
        "slice": result.where.name,
        "mesh": dict(listing.mesh),
        "flops": listing.flops,
        "vector_flops": listing.vector,
        "bytes": {"fused": listing.bytes, "unfused": listing.unfused, "arguments_and_results": listing.inputs + listing.outputs},
        "seconds": {"bound": result.bound, "op_by_op": result.op_by_op, "expected": result.expected, "overlapped": _overlap_json(result)},
        "bottleneck": result.bottleneck,
        "resources": dict(result.resources),
        "collectives": [
            {"kind": kind, "axes": list(axes), "count": count, "bytes": bytes}
            for (kind, axes), (count, bytes) in listing.communicated().items()
        ],
        "scopes": [
            {"scope": name, "flops": sum(t.op.times * t.op.flops for t in times), "seconds": _sums(times)}
            for name, times in result.scopes(depth).items()
        ],
        "ops": [op_json(t) for t in result.ops],
        "notes": list(result.notes),
    }  # fmt: skip


def _overlap_json(result: ProgramTime) -> dict[str, float] | None:
    return None if result.overlap is None else {"bound": result.overlap.bound, "expected": result.overlap.expected}


def _overlap_row(*results: ProgramTime) -> list[tuple[str, ...]]:
    """What transfers beside work give, where there are transfers."""
    shown = [r.overlap for r in results]
    if not any(r.listing.communicated() for r in results) or None in shown:
        return []
    return [
        (
            "overlapped",
            *(f"{format_seconds(o.expected)} expected, {format_seconds(o.bound)} at rooflines" for o in shown if o),
        )
    ]


def _sums(times: tuple[OpTime, ...]) -> dict[str, float]:
    return {"op_by_op": sum(t.bound for t in times), "expected": sum(t.expected for t in times)}


def op_json(time: OpTime) -> dict[str, Any]:
    """One op."""
    op = time.op
    result: dict[str, Any] = {
        "name": op.name, "kind": op.kind, "times": op.times, "dtype": op.dtype, "flops": op.flops, "vector_flops": op.vector,
        "bytes": op.bytes, "unfused_bytes": op.unfused, "scope": op.scope, "source": op.source,
        "seconds": {"bound": time.bound, "expected": time.expected}, "binds": time.binds,
    }  # fmt: skip
    if op.transfer is not None:
        result["collective"] = {"kind": op.transfer.kind, "axes": list(op.transfer.axes), "bytes": op.transfer.bytes}
    return result


def program_text(result: ProgramTime, depth: int = 1, top: int = 12) -> RenderableType:
    """The page that `rooftop jax` prints."""
    listing = result.listing
    parts: list[RenderableType] = [
        heading(f"{listing.name} on {result.where.name}: {format_seconds(result.expected)} expected")
    ]
    rows = [
        ("expected", f"{format_seconds(result.expected)}, ops one after the other as calibrated"),
        ("op by op", f"{format_seconds(result.op_by_op)}, each op at its roofline"),
        *((name, f"{text}: transfers beside work that does not wait for them") for name, text in _overlap_row(result)),
        ("bound", f"{format_seconds(result.bound)} ({result.bottleneck}): all fused, all overlapped"),
        ("FLOPs", f"{format_flops(listing.flops)} in matmuls, {format_flops(listing.vector)} elementwise"),
        ("bytes", f"{format_bytes(listing.bytes)} with fusion, {format_bytes(listing.unfused)} without,"
                  f" {format_bytes(listing.inputs + listing.outputs)} of arguments and results"),
    ]  # fmt: skip
    if listing.mesh:
        rows.append(("mesh", ", ".join(f"{a}={n}" for a, n in listing.mesh.items()) + "; all numbers are one device's"))
    parts.append(table("", ("", ""), rows))
    moved = listing.communicated()
    if moved:
        parts.append(
            table(
                "Collectives", ("kind", "axes", ">count", ">bytes of the whole array"),
                [(k.replace("_", "-"), "+".join(a), f"{n:,.0f}", format_bytes(b)) for (k, a), (n, b) in moved.items()],
            )
        )  # fmt: skip
    scopes = result.scopes(depth)
    if len(scopes) > 1:
        longest = max(_sums(t)["expected"] for t in scopes.values())
        parts.append(
            table(
                "Scopes", ("scope", ">expected", ">op by op", ""),
                [(name, format_seconds(s["expected"]), format_seconds(s["op_by_op"]), bar(s["expected"], longest))
                 for name, s in ((n, _sums(t)) for n, t in list(scopes.items())[:top])],
            )
        )  # fmt: skip
    parts.append(_offenders(result, top))
    if result.notes:
        parts.append(lines("Notes", result.notes))
    return group(*parts)


def _offenders(result: ProgramTime, top: int) -> RenderableType:
    rows = []
    for t in result.ops[:top]:
        op = t.op
        what = op.name if op.transfer is None else f"{op.name} over {'+'.join(op.transfer.axes)}"
        rows.append(
            (
                what if op.times == 1 else f"{what} x{op.times:,.0f}", format_seconds(t.expected),
                f"{t.expected / result.expected:.0%}" if result.expected else "", t.binds,
                f"{t.math / t.expected:.0%}" if t.math and t.expected else "", op.source.rsplit("/", 1)[-1],
            )
        )  # fmt: skip
    shown = f"The {len(rows)} longest of {len(result.ops)} ops" if len(rows) < len(result.ops) else "Ops"
    return table(shown, ("op", ">expected", ">share", "bound by", ">of peak FLOP/s", "source"), rows)


def versus_json(first: ProgramTime, second: ProgramTime, depth: int = 1) -> dict[str, Any]:
    """Both programs; `ratio` above 1 says that the first takes longer."""
    return {
        "first": program_json(first, depth),
        "second": program_json(second, depth),
        "ratio": {
            "bound": _ratio(first.bound, second.bound),
            "expected": _ratio(first.expected, second.expected),
            "overlapped": _ratio(_told(first), _told(second)),
        },
    }


def _told(result: ProgramTime) -> float:
    """The expected time with transfers beside work, where that is known."""
    return result.expected if result.overlap is None else result.overlap.expected


def _ratio(a: float, b: float) -> float | None:
    return a / b if b > 0 else None


def versus_text(first: ProgramTime, second: ProgramTime, depth: int = 1) -> RenderableType:
    """Two programs side by side."""
    a, b = first.listing, second.listing
    beside = _overlap_row(first, second)
    faster, slower = (first, second) if _told(first) <= _told(second) else (second, first)
    title = (
        f"{faster.listing.name} is {_told(slower) / _told(faster):.2f}x faster on {first.where.name}"
        + (", transfers beside work" if beside else "")
        if _told(faster)
        else "no work"
    )
    rows = [
        ("expected", format_seconds(first.expected), format_seconds(second.expected)),
        ("op by op", format_seconds(first.op_by_op), format_seconds(second.op_by_op)),
        *beside,
        ("bound", f"{format_seconds(first.bound)} ({first.bottleneck})", f"{format_seconds(second.bound)} ({second.bottleneck})"),
        ("FLOPs in matmuls", format_flops(a.flops), format_flops(b.flops)),
        ("FLOPs elementwise", format_flops(a.vector), format_flops(b.vector)),
        ("bytes with fusion", format_bytes(a.bytes), format_bytes(b.bytes)),
        ("bytes without", format_bytes(a.unfused), format_bytes(b.unfused)),
        *(
            (name, format_seconds(first.resources.get(name, 0.0)), format_seconds(second.resources.get(name, 0.0)))
            for name in dict.fromkeys([*first.resources, *second.resources])
        ),
        *(
            (f"binds: {name}", *(format_seconds(sum(t.expected for t in r.ops if t.binds == name)) for r in (first, second)))
            for name in ("compute", "vector", "hbm", "network")
        ),
    ]  # fmt: skip
    parts: list[RenderableType] = [heading(title), table("", ("", f">{a.name}", f">{b.name}"), rows)]
    notes = dict.fromkeys([*first.notes, *second.notes])
    if notes:
        parts.append(lines("Notes", tuple(notes)))
    return group(*parts)


def exported_json(made: Exported) -> dict[str, Any]:
    """A plan in the keys of a framework."""
    return {
        "framework": made.framework,
        "settings": made.settings,
        "text": made.text,
        "not_expressed": list(made.unsaid),
    }


def exported_text(made: Exported) -> RenderableType:
    """The file as it is."""
    from rich.text import Text

    return Text(made.text.rstrip("\n"), no_wrap=True)
