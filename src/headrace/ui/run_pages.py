"""The pages of mixes, runs, steps, what a training waits for, and differences."""

from __future__ import annotations

from typing import Any, Final

from headrace import inspect, tracing
from headrace.errors import ConfigError, HeadraceError
from headrace.inspect import Pairs, Title, Titled, views
from headrace.inspect.blocks import Note
from headrace.inspect.figures import count, plural
from headrace.inspect.run_files import source_counts
from headrace.tracing import GridCell, RunFile, Topology, Traced
from headrace.ui import drawing
from headrace.ui.rendering import Embedded
from headrace.ui.requests import Pager, Query, command, kept, link
from headrace.ui.store_pages import Values

SHOWN_RANKS: Final = 1024
SHOWN_ROWS: Final = 200
SHOWN_CHARTS: Final = 8


def mix(asked: Query) -> Values:
    """The tree of each split of a mix, and what some steps take from each source."""
    path = asked.path("mix")
    outside = [one for one in views.mix_paths(path) if not asked.places.may_open(one)]
    if outside:
        raise ConfigError(
            f"{path}: names {', '.join(outside[:3])}, which {'is' if len(outside) == 1 else 'are'} not below the paths "
            "that headrace ui was started with: name them, too"
        )
    steps = asked.maybe("steps", high=1 << 53)
    batch = asked.maybe("batch", low=1, high=1 << 31) or (None if steps is None else 1)
    found = inspect.describe(path, steps=steps, global_batch_size=batch)
    options = () if steps is None else ("--steps", steps, "--global-batch-size", batch)
    return "mix.html", {
        "crumbs": [(path, "")],
        "path": path,
        "steps": steps,
        "batch": batch,
        "shown": [*found.shown()],
        "copy": command("info", path, *options),
    }


class _Opened:
    """A file of runs as it was read, and one of its runs over its recipes."""

    def __init__(self, path: str) -> None:
        self.file: RunFile = tracing.read_run_file(path)
        self.told = None if any(run.lanes is not None for run in self.file.runs) else inspect.tell_run_file(path)
        self.runs = [None if run.lanes is not None else run.run() for run in self.file.runs]


def _opened(path: str) -> _Opened:
    return kept(_Opened, path, path)


def _framed(path: str, saved: Any) -> Values:
    """A framed run, of which only the sources are known without its journals."""
    words = f"a framed run from step {count(saved.first_step)} on, with {plural(saved.lanes.num_lanes, 'lane')}"
    note = f"headrace trace step N --run {path} --journal FILE"
    sources = [
        (
            drawing.source_name(one.path),
            plural(one.num_samples, "sample") + (f", {one.store.path}" if one.store else ""),
        )
        for one in saved.sources
    ]
    shown = [
        Title(path, words),
        Note(f"Which samples a unit holds is known only from the journals of the loaders. Ask {note}"),
        Titled("Sources", [Pairs(sources)]),
    ]
    return "shown.html", {"crumbs": [(path, "")], "shown": shown}


def _number_of(opened: _Opened, step: int) -> int:
    """Return the run of a file that holds a step of the training."""
    return max((i for i, run in enumerate(opened.file.runs) if run.first_step <= step), default=0)


def last_step(opened: _Opened) -> int | None:
    """Return the last step of the training; None if it has no end."""
    planned = opened.runs[-1]
    if planned is None or planned.num_steps is None:
        return None
    return planned.num_steps - 1 + opened.file.runs[-1].shift


def run(asked: Query) -> Values:
    """The mix of a run over its steps, its edits, and its account before a step."""
    path = asked.path("run")
    opened = _opened(path)
    number = asked.number("run", len(opened.file.runs) - 1, high=len(opened.file.runs) - 1)
    saved, planned = opened.file.runs[number], opened.runs[number]
    if planned is None or opened.told is None:
        return _framed(path, saved)
    # The pages count the steps of the training; a run that continues another one has steps of its own.
    shift = saved.shift
    first = asked.number("first", max(0, shift))
    last = asked.maybe("last")
    curve = tracing.mix_curve(planned, first - shift, None if last is None else last + 1 - shift)
    reached = planned.schedule.step_of(opened.file.reached) + shift if number == len(opened.file.runs) - 1 else None
    last_shown = curve.end_step + shift
    step = asked.number("step", min(last_shown, reached or last_shown), high=last_shown)
    account = tracing.account(planned, max(0, step - shift))
    told = inspect.account_blocks(path, account, shift=shift, called=drawing.source_name)
    return "run.html", {
        "crumbs": [(path, "")],
        "path": path,
        "told": opened.told,
        "number": number,
        "first": first,
        "last": curve.end_step - 1 + shift,
        "curve": curve,
        "chart": drawing.mix_chart(curve, step - shift) if len(curve.sources) > 1 or curve.marks else "",
        "step": step,
        "reached": reached,
        "shown": [*told, opened.told.runs[number].section()],
        "shown_sources": drawing.SHOWN_SOURCES,
        "copy": command("account", path, "--until-step", step - shift),
        "others": [one for one, kind in asked.places.kinds().items() if kind == "run" and one != path],
    }


def step(asked: Query) -> Values:
    """A step as a grid of ranks by micro-steps, and the samples of one micro-batch."""
    path = asked.path("run")
    opened = _opened(path)
    wanted = asked.number("step", 0)
    number = _number_of(opened, wanted)
    if opened.runs[number] is None:
        return _framed(path, opened.file.runs[number])
    sources = tracing.Sources(opened.file, may_open=asked.places.may_open)
    history, data = sources.history(), sources.run(number)
    size = opened.file.runs[number].schedule.size(max(0, wanted - opened.file.runs[number].shift))
    ranks = asked.number("ranks", 1, low=1, high=1 << 20)
    micro = asked.number("micro", max(1, min(8, size // ranks)), low=1, high=1 << 20)
    topology = Topology(ranks=ranks, micro_batch_size=micro)
    grid = tracing.step_grid(history, wanted, topology, data)
    here = {"path": path, "step": wanted, "ranks": ranks, "micro": micro}
    chosen = (asked.number("rank", 0), asked.number("at", 0)) if grid.cells else None
    cell = next((one for one in grid.cells if (one.rank, one.micro_step) == chosen), None)
    rows = range(len(grid.samples)) if cell is None else cell.rows
    shown = [grid.samples[row] for row in rows[:SHOWN_ROWS]]
    if cell is not None and chosen is not None:
        mine = history.step(wanted, topology=topology, rank=chosen[0])
        shown = inspect.with_inputs([one for one in mine if one.micro_step == chosen[1]][:SHOWN_ROWS])
    drawn_ranks = sorted({cell.rank for cell in grid.cells})
    chart = drawing.step_map(
        grid.cells,
        drawn_ranks[:SHOWN_RANKS],
        1 + max((cell.micro_step for cell in grid.cells), default=0),
        _cell_words,
        lambda cell: link("step", **here, rank=cell.rank, at=cell.micro_step),
        chosen,
    )
    words = ("trace", "step", wanted, "--run", path, "--ranks", f"{ranks},micro_batch_size={micro}")
    return "step.html", {
        "crumbs": [(path, link("run", path=path, step=wanted)), (f"step {count(wanted)}", "")],
        "path": path,
        "here": here,
        "step": wanted,
        "grid": grid,
        "chart": chart if grid.cells else "",
        "chosen": chosen,
        "cell": cell,
        "shown": shown,
        "held": [grid.held[row] for row in rows[:SHOWN_ROWS]] if grid.held else [],
        "left_out": len(rows) - len(shown),
        "pairs": sorted({cell.held.pairs for cell in grid.cells if cell.held is not None}),
        "has_sources": any(one.source not in ("", ".") for one in shown),
        "shown_ranks": SHOWN_RANKS,
        "num_ranks": len(drawn_ranks),
        "notes": [*grid.notes, *sources.notes],
        "last": last_step(opened),
        "copy": command(*words),
    }


def _cell_words(cell: GridCell) -> str:
    words = f"rank {cell.rank}, micro-step {cell.micro_step}: {plural(len(cell.rows), 'sample')}"
    if (held := cell.held) is None:
        return words
    words += f", {count(held.tokens)} tokens, fill {held.fill:.1%}, {count(held.pairs)} attended pairs"
    if held.supervised_tokens is not None:
        words += f", {held.supervised_tokens / max(1, held.tokens):.1%} supervised"
    return words


def fed(asked: Query) -> Values:
    """A sample as the model sees it, and when it comes again."""
    path = asked.path("run")
    opened = _opened(path)
    position = asked.number("position", 0)
    number = asked.number("run", len(opened.file.runs) - 1, high=len(opened.file.runs) - 1)
    sources = tracing.Sources(opened.file, may_open=asked.places.may_open)
    data = sources.run(number)
    if data is None:
        raise ConfigError(f"{path}: the sample cannot be read: {'; '.join(sources.notes) or 'the run is framed'}")
    found = views.fed_sample(data, position, may_open=asked.places.may_open)
    wanted = data.schedule.step_of(position) + opened.file.runs[number].shift
    history = sources.history()
    times, problem = None, ""
    try:
        times = history.sample(found.source, found.index, limit=12, origins=False)
    except HeadraceError as error:
        problem = str(error)
    (traced,) = inspect.with_inputs([_place(found, wanted)])
    back = [
        (path, link("run", path=path, step=wanted)),
        (f"step {count(wanted)}", link("step", path=path, step=wanted)),
    ]
    return "fed.html", {
        "crumbs": [*back, (f"position {count(position)}", "")],
        "path": path,
        "step": wanted,
        "sample": found,
        "origins": traced.origins,
        "times": times,
        "problem": problem,
        "media_of": Embedded().source,
        "pairs": Pairs.of,
        "pager": Pager.at("fed", "position", position, 1, data.length, "position", path=path, run=number),
        "copy": command("trace", "sample", found.source, found.index, "--run", path),
    }


def _place(found: Any, step: int) -> Traced:
    return Traced(
        step=step, last_step=step, position=found.position, run=0, source=found.source, epoch=found.epoch,
        index=found.index, origins=found.origins,
    )  # fmt: skip


def live(asked: Query) -> Values:
    """What a training waits for at the moment; a script renews the page."""
    path = asked.path("metrics")
    report = views.live_report(path)
    waiting = sorted(report.ranks, key=lambda rank: -rank.wait_share)[:SHOWN_CHARTS]
    return "live.html", {
        "crumbs": [(path, "")],
        "path": path,
        "report": report,
        "charts": {rank.rank: drawing.wait_chart(rank.points, report.stages) for rank in waiting},
        "copy": "",
    }


def diff(asked: Query) -> Values:
    """Where two runs part."""
    files = [path for path, kind in asked.places.kinds().items() if kind == "run"]
    one, other = asked.text("one"), asked.text("other")
    values: dict[str, Any] = {"crumbs": [("compare", "")], "files": files, "one": one, "other": other}
    if not one or not other:
        return "diff.html", {**values, "told": "", "rows": ()}
    for path in (one, other):
        asked.places.check(path, "run")
    runs = [tracing.filed_run(path, read_data=False) for path in (one, other)]
    found = tracing.first_difference(*runs)
    steps = () if found is None else range(max(0, found.step - 1), found.step + 3)
    return "diff.html", {
        **values,
        "told": "the same from begin to end" if found is None else found.message,
        "difference": found,
        "rows": [(step, *(source_counts(planned, step) for planned in runs)) for step in steps],
        "copy": command("account", one, other),
    }
