"""Slow workers: what waiting for them costs, what not waiting costs.

    python examples/stragglers.py                  about a minute
    python examples/stragglers.py --steps 300      three

Four workers train the same model under sequential, bounded and eventual consistency, where (a) a random one of them is
4 times slower in each step and (b) one always is. Computing is sleep, so two cores suffice. Prints what each run came
to, says why, and draws the loss by update and by second in stragglers.png.
"""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import windlass as wl
from windlass.apps import fashion
from windlass.apps.stragglers import CONSISTENCIES, Case, Outcome, Plan, Problem, label, run

COLUMNS = (
    ("", "", "<12"),
    ("samples/s", "", ">9"),
    ("×", "", ">6"),
    ("steady", "samples/s", ">11"),
    ("seconds to", "loss {target}", ">12"),
    ("idle seconds of", "each worker", ">22"),
    ("staleness", "mean, max", ">12"),
    ("loss", "", ">8"),
    ("on the last", "worker's data", ">15"),
)


def main() -> None:
    options = parse()
    plan = Plan(steps=options.steps, lr=options.lr, target_loss=options.target)
    data = fashion.find(options.data, fashion.default_places(os.environ), print).load()
    problem = Problem.of(fashion.Split(*(each[: options.images] for each in data.train)))
    try:
        with wl.Cluster(workers=plan.workers, engine=options.engine) as cluster:
            found = {case: compare(cluster, case, problem, plan) for case in Case}
    except wl.UsageError as error:
        sys.exit(f"stragglers.py: {error}")
    explain(found, plan)
    draw(options.plot, found)


def compare(cluster: wl.Cluster, case: Case, problem: Problem, plan: Plan) -> list[Outcome]:
    """One run under each consistency; prints a line for each."""
    letter = "ab"[list(Case).index(case)]
    print(f"({letter}) {case.value}: {plan.slow_seconds:g} s a step, else {plan.fast_seconds:g} s\n")
    for titles in zip(*(column[:2] for column in COLUMNS), strict=True):
        print(row([title.format(target=plan.target_loss) for title in titles]))
    found: list[Outcome] = []
    for consistency in CONSISTENCIES:
        found.append(run(cluster, case, consistency, problem, plan))
        print(line(found[-1], found[0]), flush=True)
    print()
    return found


def line(outcome: Outcome, first: Outcome) -> str:
    cells = (
        label(outcome.consistency),
        f"{outcome.samples_per_second:.0f}",
        f"{ratio(outcome, first):.2f}",
        f"{outcome.steady_samples_per_second:.0f}",
        "never" if outcome.seconds_to_target is None else f"{outcome.seconds_to_target:.2f}",
        " ".join(f"{seconds:.2f}" for seconds in outcome.idle_seconds),
        f"{outcome.staleness_mean:.1f}, {outcome.staleness_max:>2}",
        f"{outcome.loss:.3f}",
        f"{outcome.last_workers_loss:.3f}",
    )
    return row(cells)


def row(cells: Sequence[str]) -> str:
    return "".join(f"{cell:{column[2]}}" for cell, column in zip(cells, COLUMNS, strict=True)).rstrip()


def explain(found: dict[Case, list[Outcome]], plan: Plan) -> None:
    """Say what the numbers show."""
    first, *_, four, _, eventual = found[Case.RANDOM]
    say(
        f"(a) Someone is slow in every step, so every round takes {plan.slow_seconds:g} s. But it is not always the "
        "same worker: over a few steps all are equally fast, and a delay of a few steps lets each make up for its slow "
        "ones. "
        f"{label(four.consistency)} does {ratio(four, first):.2f} times what sequential does, eventual "
        f"{ratio(eventual, first):.2f} times."
    )
    first, *_, widest, eventual = found[Case.ALWAYS]
    lead = (plan.workers - 1) * CONSISTENCIES[-2].delay
    say(
        "(b) A bounded delay gains nothing in the long run. Nobody may be more than `delay` pushes ahead of the last "
        f"worker, which needs {plan.slow_seconds:g} s a step whatever the others do. They run ahead at the start, up "
        "to the bound, and from then on they wait for it in every step, as under sequential: in the middle of the run "
        f"{label(widest.consistency)} does {widest.steady_samples_per_second:.0f} samples/s, sequential "
        f"{first.steady_samples_per_second:.0f}. All it ever gains is the head start, {lead} pushes, which is worth "
        f"{lead * plan.slow_seconds / plan.workers:.2f} s, however long it runs."
    )
    say(
        f"Only not waiting helps: eventual does {ratio(eventual, first):.2f} times what sequential does. It has its "
        f"price. The last worker made {eventual.pushes[-1] / sum(eventual.pushes):.0%} of the pushes instead of "
        f"{1 / plan.workers:.0%}, so its data count for less: after as many pushes in all, the loss on them is "
        f"{eventual.last_workers_loss:.3f}, under sequential {first.last_workers_loss:.3f}. A worker that is always "
        "slow is better given less to do, or left out."
    )


def say(text: str) -> None:
    print(textwrap.fill(text, 100) + "\n")


def ratio(outcome: Outcome, to: Outcome) -> float:
    return outcome.samples_per_second / to.samples_per_second


def draw(path: Path, found: dict[Case, list[Outcome]]) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no plot: it needs matplotlib, from `pip install 'windlass[demo]'`", file=sys.stderr)
        return
    figure = Figure(figsize=(10, 7), layout="constrained")
    for row, (case, outcomes) in zip(figure.subplots(2, 2, sharey=True), found.items(), strict=True):
        for axes, x, name in zip(
            row, ("pushes", "second"), ("updates (pushes of all workers)", "seconds"), strict=True
        ):
            for outcome in outcomes:
                points = [(getattr(point, x), point.loss) for point in outcome.curve]
                axes.plot(*zip(*points, strict=True), label=label(outcome.consistency), linewidth=1.2)
            axes.set(xlabel=name, ylabel="loss", title=case.value)
            axes.grid(alpha=0.3)
        row[0].legend()
    figure.savefig(path, dpi=100)
    print(f"drawn in {path}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=Plan().steps, help="of each worker")
    parser.add_argument("--lr", type=float, default=Plan().lr)
    parser.add_argument("--target", type=float, default=Plan().target_loss, help="the loss to be reached")
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--data", default="sample", help="sample, full, auto, or a directory")
    parser.add_argument("--engine", choices=["processes", "threads"], default="processes")
    parser.add_argument("--plot", type=Path, default=Path("stragglers.png"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
