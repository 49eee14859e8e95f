"""What every experiment shares: the command line, the runs, the results, the picture.

An experiment is a function run_one(method, seed, size) -> {metric: value}. The harness calls it
for every method and seed that the results file does not have yet, and writes the file after each
run, so that a run that was stopped goes on where it was.
"""
from __future__ import annotations

import argparse
import json
import math
import os
import pathlib
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

import torch

from . import stats
from .methods import METHODS

RESULTS = pathlib.Path(__file__).resolve().parent / "results"


class Row(TypedDict):
    """One value of one run: what the results files are lists of."""

    experiment: str
    method: str
    seed: int
    metric: str
    value: float


SIZES = ("full", "quick", "tiny")
RunOne = Callable[[str, int, str], Mapping[str, float]]


@dataclass(frozen=True)
class Experiment:
    """A name, what it does, its methods, and the metric that is compared."""

    name: str
    about: str
    methods: Sequence[str]
    metrics: Sequence[str]  # compared in the report; the first is the headline
    run_one: RunOne
    higher_is_better: bool = True
    seeds: int = 8
    curves: Sequence[str] = field(default_factory=tuple)  # "task_accuracy" of "task_accuracy/03"
    curve_axis: str = "task"


class Progress:
    """done/total, rate and time left on stderr: one line redrawn on a terminal, else one a run."""

    def __init__(self, total: int) -> None:
        self.total, self.done, self.start = total, 0, time.monotonic()
        self.terminal = sys.stderr.isatty()

    def show(self, text: str) -> None:
        spent = time.monotonic() - self.start
        left = spent / self.done * (self.total - self.done) if self.done else math.nan
        filled = 24 * self.done // max(self.total, 1)
        bar = "#" * filled + "-" * (24 - filled)
        when = "" if math.isnan(left) else f", {left:.0f} s left"
        line = f"[{bar}] {self.done}/{self.total} {spent:.0f} s{when}: {text}"
        if self.terminal:
            print(f"\r\033[K{line}", end="\n" if self.done == self.total else "",
                  file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr, flush=True)


def load_rows(path: pathlib.Path) -> list[Row]:
    if not path.exists():
        return []
    rows: list[Row] = json.loads(path.read_text(encoding="utf-8"))
    return rows


def save_rows(path: pathlib.Path, rows: Iterable[Row]) -> None:
    """One row a line, sorted, by write-then-rename."""
    ordered = sorted(rows, key=lambda row: (
        METHODS.index(row["method"]), row["seed"], row["metric"]))
    text = "[\n" + ",\n".join(json.dumps(row) for row in ordered) + "\n]\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".part")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def values_of(rows: Iterable[Row], method: str, metric: str) -> dict[int, float]:
    """Value by seed."""
    return {row["seed"]: row["value"] for row in rows
            if row["method"] == method and row["metric"] == metric}


def methods_in(rows: Sequence[Row]) -> list[str]:
    present = {row["method"] for row in rows}
    return [method for method in METHODS if method in present]


def interval_text(interval: stats.Interval, sign: bool = False) -> str:
    mean = f"{interval.mean:+.4f}" if sign else f"{interval.mean:.4f}"
    if math.isnan(interval.low):
        return mean
    return f"{mean} [{interval.low:.4f}, {interval.high:.4f}]"


def report(experiment: Experiment, rows: Sequence[Row], commands: Sequence[str]) -> str:
    """Markdown: each method's mean, and its paired differences from warm and from fired."""
    lines = [f"# {experiment.name}", "", experiment.about, "", "Made by", "", "```sh", *commands,
             "```", ""]
    for metric in experiment.metrics:
        methods = [name for name in methods_in(rows) if values_of(rows, name, metric)]
        if not methods:
            continue
        against = [name for name in ("warm", "fired") if name in methods]
        lines += [f"`{metric}`, mean [95 % interval]; differences are paired by seed", "",
                  "| method | seeds | mean | " + " | ".join(f"minus {name}" for name in against)
                  + " |", "|---" * (3 + len(against)) + "|"]
        for method in methods:
            own = values_of(rows, method, metric)
            cells = [method, str(len(own)), interval_text(stats.mean_interval(list(own.values())))]
            for other in against:
                theirs = values_of(rows, other, metric)
                shared = method != other and set(own) & set(theirs)
                cells.append(interval_text(stats.paired_difference(own, theirs), sign=True)
                             if shared else "–")
            lines.append("| " + " | ".join(cells) + " |")
        lines.append("")
        if {"fired-official", "official-torch"} <= set(methods):
            equal = stats.paired_difference(values_of(rows, "fired-official", metric),
                                            values_of(rows, "official-torch", metric), 0.90)
            lines += ["fired-official minus official-torch, 90 % interval: "
                      + interval_text(equal, sign=True), ""]
    return "\n".join(lines)


def curve_of(rows: Sequence[Row], method: str, curve: str) -> tuple[list[float], list[float]]:
    """Places and means over seeds of the metrics `curve/place`."""
    places: dict[float, list[float]] = {}
    for row in rows:
        name, _, place = row["metric"].partition("/")
        if row["method"] == method and name == curve and place:
            places.setdefault(float(place), []).append(row["value"])
    order = sorted(places)
    return order, [math.fsum(places[place]) / len(places[place]) for place in order]


def picture(experiment: Experiment, rows: Sequence[Row], path: pathlib.Path) -> None:
    """Bars with intervals for each compared metric, then one panel a curve."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = len(experiment.metrics) + len(experiment.curves)
    columns = 2 if panels == 4 else min(panels, 3)
    figure, axes = pyplot.subplots(math.ceil(panels / columns), columns, squeeze=False,
                                   figsize=(4.4 * columns, 3.4 * math.ceil(panels / columns)))
    flat = list(axes.flat)
    colour = {method: f"C{index % 10}" for index, method in enumerate(METHODS)}
    for axis, metric in zip(flat, experiment.metrics, strict=False):
        for place, method in enumerate(methods_in(rows)):
            own = values_of(rows, method, metric)
            if own:
                middle = stats.mean_interval(list(own.values()))
                half = 0.0 if math.isnan(middle.low) else middle.high - middle.mean
                axis.errorbar([middle.mean], [place], xerr=[half], fmt="o", color=colour[method],
                              capsize=3)
        axis.set_yticks(range(len(methods_in(rows))), methods_in(rows), fontsize=8)
        axis.invert_yaxis()
        axis.set_title(metric, fontsize=9)
        axis.grid(axis="x", alpha=0.3)
    for axis, curve in zip(flat[len(experiment.metrics):], experiment.curves, strict=False):
        for method in methods_in(rows):
            where, means = curve_of(rows, method, curve)
            if where:
                dashed = "--" if METHODS.index(method) >= 10 else "-"
                axis.plot(where, means, dashed, marker=".", color=colour[method], label=method)
        axis.set_title(curve, fontsize=9)
        axis.set_xlabel(experiment.curve_axis, fontsize=8)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=5)
    for axis in flat[panels:]:
        axis.set_axis_off()
    figure.suptitle(experiment.name, fontsize=11)
    figure.tight_layout()
    figure.savefig(path, dpi=80, metadata={"Software": ""})
    pyplot.close(figure)


def parser_of(experiment: Experiment) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m experiments.{experiment.name}", description=experiment.about)
    parser.add_argument("--seeds", type=int, metavar="N",
                        help=f"how many seeds ({experiment.seeds}; fewer with --quick)")
    parser.add_argument("--first-seed", type=int, default=100, metavar="S",
                        help="the first of them (100)")
    parser.add_argument("--methods", metavar="A,B",
                        help=f"some of {','.join(experiment.methods)}")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", dest="size", action="store_const", const="quick",
                      help="a small version, under 3 minutes on two idle cores")
    size.add_argument("--tiny", dest="size", action="store_const", const="tiny",
                      help="the smallest version: shows that it runs, and nothing else")
    parser.set_defaults(size="full")
    parser.add_argument("--out", type=pathlib.Path, metavar="FILE",
                        help="the results, a JSON list; beside it a .png and a .md (results/"
                        f"{experiment.name}.json; smaller sizes .cache/SIZE/"
                        f"{experiment.name}.json). Runs that are in it are not run again")
    parser.add_argument("--again", action="store_true", help="forget the results file first")
    parser.add_argument("--report", action="store_true",
                        help="run nothing: make the .png and .md of the results file again")
    parser.add_argument("--threads", type=int, default=1, metavar="N",
                        help="of PyTorch (1; results may depend on it in the last bits)")
    return parser


def output_of(experiment: Experiment, arguments: argparse.Namespace) -> pathlib.Path:
    if arguments.out is not None:
        return pathlib.Path(arguments.out)
    folder = RESULTS if arguments.size == "full" else RESULTS.parent / ".cache" / arguments.size
    return folder / f"{experiment.name}.json"


def commands_of(experiment: Experiment, rows: Sequence[Row], size: str) -> list[str]:
    """The commands that make the whole file, whatever parts it was made in: one for each count of
    seeds that methods have."""
    by_seeds: dict[tuple[int, int], list[str]] = {}
    for method in methods_in(rows):
        seeds = {row["seed"] for row in rows if row["method"] == method}
        by_seeds.setdefault((min(seeds), len(seeds)), []).append(method)
    commands = []
    for (first, count), methods in sorted(by_seeds.items()):
        words = ["python", "-m", f"experiments.{experiment.name}", "--seeds", str(count),
                 "--first-seed", str(first)]
        words += [] if size == "full" else [f"--{size}"]
        words += [] if set(methods) == set(experiment.methods) else ["--methods", ",".join(methods)]
        commands.append(shlex.join(words))
    return commands


def run_all(experiment: Experiment, methods: Sequence[str], seeds: Sequence[int], size: str,
            path: pathlib.Path) -> list[Row]:
    """Runs what the file at `path` lacks, seed by seed, and keeps it there."""
    rows = load_rows(path)
    have = {(row["method"], row["seed"]) for row in rows}
    wanted = [(method, seed) for seed in seeds for method in methods
              if (method, seed) not in have]
    progress = Progress(len(wanted))
    for method, seed in wanted:
        progress.show(f"{method}, seed {seed}")
        values = experiment.run_one(method, seed, size)
        rows += [Row(experiment=experiment.name, method=method, seed=seed, metric=metric,
                     value=round(float(value), 6)) for metric, value in values.items()]
        save_rows(path, rows)
        progress.done += 1
        headline = values.get(experiment.metrics[0], math.nan)
        progress.show(f"{method}, seed {seed}: {experiment.metrics[0]} {headline:.4f}")
    return rows


def main(experiment: Experiment, arguments: Sequence[str] | None = None) -> int:
    """The command of one experiment."""
    parser = parser_of(experiment)
    parsed = parser.parse_args(arguments)
    methods = parsed.methods.split(",") if parsed.methods else list(experiment.methods)
    unknown = [method for method in methods if method not in experiment.methods]
    if unknown:
        parser.error(f"{experiment.name} has no method {', '.join(unknown)}; it has "
                     + ", ".join(experiment.methods))
    torch.set_num_threads(parsed.threads)
    torch.set_flush_denormal(True)  # dying networks are full of them, and they are slow
    path = output_of(experiment, parsed)
    if parsed.again and not parsed.report:
        path.unlink(missing_ok=True)
    count = parsed.seeds or {"full": experiment.seeds, "quick": 2, "tiny": 1}[parsed.size]
    seeds = range(parsed.first_seed, parsed.first_seed + count)
    rows = load_rows(path) if parsed.report else run_all(
        experiment, methods, seeds, parsed.size, path)
    if not rows:
        parser.error(f"{path} has no results yet")
    text = report(experiment, rows, commands_of(experiment, rows, parsed.size))
    path.with_suffix(".md").write_text(text, encoding="utf-8")
    picture(experiment, rows, path.with_suffix(".png"))
    print(text)
    print(f"results: {os.path.relpath(path)}, picture and table beside it", file=sys.stderr)
    return 0
