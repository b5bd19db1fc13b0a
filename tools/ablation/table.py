"""The trials of every cell in, one row for each cell and the Markdown of them out."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tools.ablation.plan import Cell, Done, best_place, is_at_edge, tries
from tools.trial import Trial

BEGIN, END = "<!-- ablation: begin -->", "<!-- ablation: end -->"


@dataclass(frozen=True)
class Row:
    """A cell's best rate, with all the seeds that it was run with so far."""

    cell: Cell
    rate: str
    samples: tuple[int, ...]  # to the target, of the seeds that reached it
    most_samples: int  # that a seed which did not reach it was evaluated at; 0 where all did
    num_seeds: int
    num_tries: int
    at_edge: bool

    @property
    def mean(self) -> float | None:
        return statistics.mean(self.samples) if self.samples else None


def rows_of(results: Mapping[Cell, Done], first_seed: int) -> list[Row]:
    """Of the cells with at least one run."""
    return [_row(cell, done, first_seed) for cell, done in results.items() if tries(done, first_seed)]


def _row(cell: Cell, done: Done, first_seed: int) -> Row:
    tried = tries(done, first_seed)
    best = best_place(tried)
    trials: list[Trial] = [trial for (place, _), trial in done.items() if place == best]
    return Row(
        cell,
        cell.rate(best),
        tuple(trial.samples for trial in trials if trial.samples is not None),
        max((t.evaluations[-1][0] for t in trials if not t.reached and t.evaluations), default=0),
        len(trials),
        len(tried),
        is_at_edge(tried),
    )


def markdown(rows: Sequence[Row], num_seeds: int) -> str:
    """A table for each batch; the fewest samples of each are bold."""
    return "\n\n".join(
        _table(batch, [row for row in rows if row.cell.batch == batch], num_seeds)
        for batch in sorted({row.cell.batch for row in rows})
    )


def _table(batch: int, rows: Sequence[Row], num_seeds: int) -> str:
    whole = [row.mean for row in rows if row.mean is not None and not row.most_samples]
    fewest = min(whole, default=None)
    lines = [
        f"Global batch {batch:,}:",
        "",
        "| optimizer | clip | samples to target | steps | reached | learning rate | rates tried |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        samples = _samples(row)
        if row.mean == fewest and not row.most_samples and fewest is not None:
            samples = f"**{samples}**"
        steps = f"{row.mean / batch:,.0f}" if row.mean is not None else "-"
        missing = f", {num_seeds - row.num_seeds} to run" if row.num_seeds < num_seeds else ""
        lines.append(
            f"| {row.cell.optimizer} | `{row.cell.clip}` | {samples} | {steps} | {len(row.samples)} of {row.num_seeds}"
            f"{missing} | {row.rate} | {row.num_tries}{', best at the edge' if row.at_edge else ''} |"
        )
    return "\n".join(lines)


def _samples(row: Row) -> str:
    """Mean ± standard deviation; of cells where a seed did not reach the target only a bound."""
    if row.mean is None:
        return f"above {row.most_samples:,}"
    text = f"{row.mean:,.0f}"
    if len(row.samples) > 1:
        text += f" ± {statistics.stdev(row.samples):,.0f}"
    return f"{text}, others above {row.most_samples:,}" if row.most_samples else text


def put_between_marks(page: str, text: str) -> str:
    """The page with `text` in place of what stood between its marks. Raises ValueError without them."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"there must be one line {BEGIN} and below it one line {END}")
    return f"{before}{BEGIN}\n{text}\n{END}{after}"
