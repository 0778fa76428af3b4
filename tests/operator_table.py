"""The published table of what works: docs/operators.json, which tests hold the code to, and docs/operators.md, for reading."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent.parent / "docs"
JSON = DOCS / "operators.json"
MARKDOWN = DOCS / "operators.md"

Line = dict[str, Any]
Identity = tuple[str, str, str, str]

SHORT = {
    "float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16", "int64": "i64", "int32": "i32", "int16": "i16",
    "int8": "i8", "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64", "bool": "bool", "complex64": "c64",
    "complex128": "c128", "complex32": "c32",
}  # fmt: skip
TITLES = {"op": "operators", "module": "modules", "optimizer": "optimizers"}


def read(path: Path = JSON) -> dict[Identity, Line]:
    """The committed outcomes, by suite, name, dtype and kind."""
    if not path.exists():
        return {}
    outcomes = {}
    for entry in json.loads(path.read_text()):
        for kind, by_dtype in entry["results"].items():
            for dtype, result in by_dtype.items():
                status, cause = result if isinstance(result, list) else (result, "")
                line = {"suite": entry["suite"], "name": entry["name"], "dtype": dtype, "kind": kind}
                overloads = entry["overloads"] if kind == "forward" else []
                outcomes[tuple(line.values())] = {**line, "status": status, "cause": cause, "overloads": overloads}
    return outcomes  # type: ignore[return-value]


def write(outcomes: dict[Identity, Line]) -> None:
    DOCS.mkdir(exist_ok=True)
    entries = _entries(outcomes.values())
    JSON.write_text("[\n" + ",\n".join(json.dumps(entry) for entry in entries) + "\n]\n")
    MARKDOWN.write_text(_markdown(entries, list(outcomes.values())))


def _entries(lines: Iterable[Line]) -> list[dict[str, Any]]:
    """One entry an operator: its results by kind and dtype."""
    entries: dict[tuple[str, str], dict[str, Any]] = {}
    for line in sorted(lines, key=lambda line: (line["suite"], line["name"].lower(), line["name"], line["kind"], line["dtype"])):
        blank = {"suite": line["suite"], "name": line["name"], "overloads": [], "results": {}}
        entry = entries.setdefault((line["suite"], line["name"]), blank)
        result = [line["status"], line["cause"]] if line["cause"] else line["status"]
        entry["results"].setdefault(line["kind"], {})[line["dtype"]] = result
        if line.get("overloads") and (not entry["overloads"] or line["dtype"] == "float32"):
            entry["overloads"] = line["overloads"]
    order = {"op": 0, "module": 1, "optimizer": 2}
    return sorted(entries.values(), key=lambda entry: order[entry["suite"]])


def _status(result: Any) -> str:
    return result[0] if isinstance(result, list) else result


# ---- how an operator is computed


def how(overloads: list[str]) -> str:
    """In words: by a lowering, a Python kernel, a decomposition of PyTorch's, a view, or several ops."""
    import torch

    from torch_tpu.eager.programs import PYTHON_KERNELS
    from torch_tpu.lowerings import TABLE, functional_of

    if not overloads:
        return ""

    def one(name: str) -> str:
        found: Any = torch.ops
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is None:
            return "Python function"  # an op that PyTorch defines when it is first used
        functional = functional_of(found)
        if found in PYTHON_KERNELS or functional in PYTHON_KERNELS:
            return "Python kernel"
        returns = found._schema.returns
        if any(r.alias_info is not None and not r.alias_info.is_write for r in returns):
            return "view"
        return "lowering" if functional in TABLE else "decomposition"

    kinds = Counter(one(name) for name in overloads)
    if len(overloads) == 1:
        return next(iter(kinds))
    counted = ", ".join(f"{n} {kind}{'s' if n > 1 else ''}" for kind, n in sorted(kinds.items()))
    return f"composite ({counted})"


# ---- the page


def _share(lines: Iterable[Line]) -> str:
    counts = Counter(line["status"] for line in lines)
    total = counts["passed"] + counts["deviates"] + counts["failed"]
    if not total:
        return "not measured | | | |"
    return (
        f"{total} | {100 * counts['passed'] / total:.1f} % | {100 * (counts['passed'] + counts['deviates']) / total:.1f} % | "
        f"{counts['failed']} |"
    )


def _summary(lines: list[Line]) -> list[str]:
    def select(suite: str, *kinds: str) -> list[Line]:
        return [line for line in lines if line["suite"] == suite and (not kinds or line["kind"] in kinds)]

    rows = {
        "operators × dtypes, forward": select("op", "forward"),
        "operators × dtypes, gradients": select("op", "backward"),
        "operators, error inputs": select("op", "errors"),
        "operators × dtypes, `out=`": select("op", "out"),
        "operators × dtypes, in-place": select("op", "inplace"),
        "operators × dtypes, non-contiguous inputs": select("op", "noncontiguous"),
        "modules × dtypes, forward and backward": select("module"),
        "optimizers × flags": select("optimizer"),
    }
    table = ["| what | measured | pass | pass or deviate | fail |", "|---|---|---|---|---|"]
    return table + [f"| {title} | {_share(selected)}" for title, selected in rows.items()]


def _dtypes(results: dict[str, Any] | None) -> str:
    if not results:
        return "–"
    good = [SHORT.get(d, d) for d, r in results.items() if _status(r) in ("passed", "deviates")]
    bad = [SHORT.get(d, d) for d, r in results.items() if _status(r) == "failed"]
    text = " ".join(good)
    return f"{text} **not {' '.join(bad)}**".strip() if bad else text or "–"


def _notes(entry: dict[str, Any]) -> list[str]:
    """Each distinct cause of a failure or a deviation, with the kinds and dtypes it was seen for."""
    seen: dict[str, list[str]] = {}
    for kind, by_dtype in entry["results"].items():
        for dtype, result in by_dtype.items():
            if isinstance(result, list) and result[0] in ("failed", "deviates"):
                seen.setdefault(result[1].replace("|", "\\|").replace("<", "&lt;"), []).append(f"{kind} {dtype}".strip())
    return [f"{', '.join(where)}: {cause}" for cause, where in seen.items()]


_HEAD = """# Operators

Made by `make sweep` from PyTorch's own databases (`op_db`, `module_db`, `optim_db`); do not edit. The expected values are
PyTorch's on the CPU, at the tolerances of `torch.testing` and of each database entry. *Pass*: within them, or as close to the
same computation in float64 as they allow, or no further from it than twice the CPU's own rounding. *Deviate*: outside them, but
within the 1e-3 that PyTorch itself allows between CPU and CUDA; the measured difference is given. An op that draws random
numbers passes if shapes and dtypes agree and its seed decides its values; their distributions are tested elsewhere.
Nothing here ran on the CPU fallback.
"""


def _markdown(entries: list[dict[str, Any]], lines: list[Line]) -> str:
    out = [_HEAD, "## Summary", "", *_summary(lines), ""]
    for suite, title in TITLES.items():
        chosen = [entry for entry in entries if entry["suite"] == suite]
        if not chosen:
            continue
        out += [f"## {title.capitalize()}", ""]
        if suite == "op":
            out += ["| operator | dtypes | gradient | computed by |", "|---|---|---|---|"]
            for e in chosen:
                r = e["results"]
                cells = e["name"], _dtypes(r.get("forward")), _dtypes(r.get("backward")), how(e["overloads"])
                out.append(f"| {' | '.join(cells)} |")
        elif suite == "module":
            out += ["| module | forward | backward |", "|---|---|---|"]
            for e in chosen:
                r = e["results"]
                out.append(f"| {e['name']} | {_dtypes(r.get('forward'))} | {_dtypes(r.get('backward'))} |")
        else:
            out += ["| optimizer | ways that agree with CPU |", "|---|---|"]
            for e in chosen:
                ways = [f"{kind}" if _status(r["float32"]) == "passed" else f"**not {kind}**" for kind, r in e["results"].items()]
                out.append(f"| {e['name']} | {', '.join(ways)} |")
        out.append("")
    out += ["## Failures and deviations", ""]
    for entry in entries:
        notes = _notes(entry)
        if notes:
            out += [f"**{entry['name']}**", "", *(f"- {note}" for note in notes), ""]
    return "\n".join(out) + "\n"
