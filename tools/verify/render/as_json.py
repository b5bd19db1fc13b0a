"""A report in, JSON out, for other programs; the schema has number 1 and grows only by new fields.

    report    schema (1), verdict, path, kind ("log", "folder", "tree"), ruleset, ruleset_from, rules,
              findings [finding], checks [check], folders [folder]
    folder    verdict, path, system, runs [run], findings [finding], checks [check], rcp or null, score or null,
              not_applicable [text]
    run       verdict, converged, samples_per_s, and every field of `report.Run`
    finding   severity ("error", "warning", "note"), message, expected, mend, key, path, line, text, explains [text],
              run_outcome, rule {id, source, title, explains [text]}, consequences [finding]
    check     name, outcome, detail
    rcp       every field of `report.Rcp`
    score     scaled_minutes, samples_per_s_and_accelerator, and every field of `report.Score`

A verdict is "passed" or "failed". Names say the unit: minutes, _s for seconds, shares and margins as fractions of 1.
What is not known, and what is no finite number, is null. Lines and indices are whole numbers, lines from 1.
"""

from __future__ import annotations

import json
import math
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from tools.verify.render.facts import verdict
from tools.verify.report import Folder, Report, Run, Score

_DERIVED = {Run: ("converged", "samples_per_s"), Score: ("scaled_minutes", "samples_per_s_and_accelerator")}


def render_json(report: Report) -> str:
    return json.dumps({"schema": 1, **_value(report)}, indent=2, allow_nan=False)


def _value(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return _record(value)
    if isinstance(value, tuple | list):
        return [_value(item) for item in value]
    if isinstance(value, Enum):
        return value.name.lower()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value) if isinstance(value, Path) else value


def _record(record: Any) -> dict[str, Any]:
    head = {"verdict": verdict(record)} if isinstance(record, Report | Folder | Run) else {}
    derived = _DERIVED.get(type(record), ())
    return head | {
        name: _value(getattr(record, name)) for name in (*derived, *(field.name for field in fields(record)))
    }
