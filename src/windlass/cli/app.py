"""The commands, their options and their help. What they do is in the modules beside this one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from windlass._words import say
from windlass.cli import INTERRUPTED
from windlass.cli.help import Command, FitByDefault, Group, Unnamed
from windlass.errors import UsageError, WindlassError

app = typer.Typer(
    cls=Group,
    help="Windlass: push gradients, pull parameters, from one process to many.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

Servers = Annotated[int, typer.Option("--servers", "-s", min=1, metavar="N", help="How many servers hold the values.")]
Workers = Annotated[int, typer.Option("--workers", "-w", min=1, metavar="N", help="How many workers push and pull.")]
Transport = Annotated[
    str, typer.Option(metavar="NAME", help="[b]shm[/b] (shared memory) or [b]tcp[/b]; auto takes the faster one.")
]


def _show_version(is_asked: bool) -> None:
    if is_asked:
        print(f"windlass {version('windlass')} (Python {sys.version.split()[0]})")
        raise typer.Exit


@app.callback()
def windlass(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    _: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    context.obj = debug


@contextmanager
def _reported(context: typer.Context) -> Iterator[None]:
    """An error becomes one sentence and an exit status: 2 for the caller's, 1 for the cluster's."""
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except WindlassError as error:
        if context.obj:
            raise
        say(Console(stderr=True), f"windlass: {error}")
        raise typer.Exit(2 if isinstance(error, UsageError) else 1) from None


@app.command(
    cls=Command,
    context_settings={"allow_interspersed_args": False},
    epilog="Examples:\n\n[b]windlass run --servers 2 --workers 4 train.py --epochs 3[/b]\n\n"
    "[b]windlass run --workers 2 --consistency bounded:2 -m package.train[/b]",
)
def run(
    context: typer.Context,
    script: Annotated[
        str, typer.Argument(metavar="SCRIPT", help="A Python file, or with -m a module.", show_default=False)
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARGS", help="For the script, untouched.", show_default=False)
    ] = None,
    servers: Servers = 1,
    workers: Workers = 1,
    replicas: Annotated[
        int, typer.Option(min=0, metavar="K", help="On how many servers more every value is: so many may die.")
    ] = 0,
    transport: Transport = "auto",
    on_worker_loss: Annotated[
        str,
        typer.Option(
            metavar="POLICY",
            help="When a worker is killed: [b]fail[/b], [b]continue[/b] without it, or [b]wait[/b] for another.",
        ),
    ] = "fail",
    consistency: Annotated[
        str,
        typer.Option(
            metavar="POLICY",
            help="[b]sequential[/b], [b]bounded:N[/b] or [b]eventual[/b], for keys that do not say otherwise.",
        ),
    ] = "sequential",
    timeout: Annotated[float, typer.Option(help="How long a wait may take before it raises.", metavar="SECONDS")] = 300,
    trace: Annotated[
        str, typer.Option(help="Write there, at the end, what every node did and when; for Perfetto.", metavar="FILE")
    ] = "",
    checkpoint: Annotated[
        str | None, typer.Option(help="Save the store there at the end; a directory, or a URL.", metavar="PATH")
    ] = None,
    checkpoint_every: Annotated[
        float | None, typer.Option(help="Save it every so often meanwhile, too.", metavar="SECONDS", show_default=False)
    ] = None,
    load: Annotated[
        str | None,
        typer.Option(help="Begin with this checkpoint, or a directory's newest, if it has one.", metavar="PATH"),
    ] = None,
    keep: Annotated[int, typer.Option(min=1, metavar="N", help="How many of these checkpoints stay.")] = 3,
    on_server_loss: Annotated[
        str,
        typer.Option(
            metavar="WHAT",
            help="When what only one server held is lost: [b]fail[/b], or [b]restore[/b] the last checkpoint "
            "and begin again.",
        ),
    ] = "fail",
    is_module: Annotated[bool, typer.Option("-m", help="SCRIPT is a module, as in `python -m`.")] = False,
) -> None:
    """Run N copies of a script as the workers of a new cluster.

    In the script, [b]store = wl.connect()[/b] joins the cluster. What a worker prints is
    shown with its name before it. When one worker fails the others are stopped,
    and its exit status is the command's (128 + n for signal n).
    """
    from windlass.cli.run import Job, check_script, parse_consistency
    from windlass.cli.run import run as run_job
    from windlass.engines._saving import SavePlan
    from windlass.engines.config import Options, check_on_worker_loss
    from windlass.engines.processes import check_replicas
    from windlass.trace.collector import check_path

    with _reported(context):
        check_replicas(replicas, servers, "--replicas")
        job = Job(
            servers=servers,
            workers=workers,
            transport=transport,
            options=Options(
                consistency=parse_consistency(consistency),
                timeout=timeout,
                trace=check_path(trace),
                replicas=replicas,
                on_worker_loss=check_on_worker_loss(on_worker_loss, "--on-worker-loss"),
                restores=on_server_loss == "restore",
            ),
            script=check_script(script, arguments or [], is_module=is_module),
            save=SavePlan(
                _place("--checkpoint", checkpoint), checkpoint_every, keep, on_server_loss, _place("--load", load),
                is_command=True,
            ),
        )
        status = run_job(job)
    raise typer.Exit(status)


def _place(option: str, path: str | None) -> str:
    """A path that was given, if any; a shell's variable that is not set gives an empty one."""
    if path == "":
        raise UsageError(f"{option} expects a path or a URL, got ''")
    return path or ""


@app.command(
    cls=Command, epilog="Examples:\n\n[b]windlass status[/b]\n\n[b]windlass status --json | jq '.[0].keys'[/b]"
)
def status(
    context: typer.Context,
    manager: Annotated[
        str, typer.Option(help="Where a manager listens; the token is taken from WINDLASS_TOKEN.", metavar="ADDRESS")
    ] = "",
    json: Annotated[bool, typer.Option("--json", help="Print a list of clusters as JSON.")] = False,
) -> None:
    """Show the clusters of this user on this machine: nodes, keys, clocks.

    It only looks: the runs do not notice. The exit status is 1 when there is no
    cluster, or when a node does not answer within five seconds.
    """
    from windlass.cli.status import status as show

    with _reported(context):
        code = show(manager, is_json=json)
    raise typer.Exit(code)


@app.command(
    cls=Command,
    epilog="Examples:\n\n[b]windlass demo[/b]\n\n[b]windlass demo --workers 4 --consistency bounded:2[/b]\n\n"
    "[b]windlass demo --plain[/b]"
)
def demo(
    context: typer.Context,
    servers: Servers = 2,
    workers: Workers = 2,
    devices: Annotated[
        str,
        typer.Option(
            metavar="N|NAMES", help="Replicas on the CPU in each worker; or cuda:0,cuda:1,... dealt out to the workers."
        ),
    ] = "1",
    consistency: Annotated[
        str, typer.Option(metavar="POLICY", help="[b]sequential[/b], [b]bounded:N[/b] or [b]eventual[/b].")
    ] = "sequential",
    mode: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Who runs the optimizer: the servers ([b]store[/b]) or all workers ([b]allreduce[/b])."
        ),
    ] = "store",
    data: Annotated[
        str,
        typer.Option(
            metavar="WHICH",
            help="[b]full[/b], the [b]sample[/b] in the package, auto (full if it can be had), or a directory.",
        ),
    ] = "auto",
    epochs: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Passes over the data.", show_default="10; 25 of the sample")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, metavar="N", help="Images in a step, of all workers.")] = 256,
    lr: Annotated[float, typer.Option(metavar="RATE", help="Learning rate.")] = 0.2,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="For the weights and the order of images.")] = 0,
    plot: Annotated[
        Path, typer.Option(metavar="FILE", help="Where to write the curves as a picture.")
    ] = Path("windlass-demo.png"),
    trace: Annotated[
        str, typer.Option(help="Write there, at the end, what every node did and when; for Perfetto.", metavar="FILE")
    ] = "",
    plain: Annotated[bool, typer.Option("--plain", help="A plain torch loop instead, to compare with.")] = False,
) -> None:
    """Train LeNet on Fashion-MNIST and watch it learn."""
    from windlass.cli.demo import Demo
    from windlass.cli.demo import demo as show
    from windlass.cli.run import parse_consistency

    with _reported(context):
        show(
            Demo(
                servers=servers,
                workers=workers,
                devices=devices,
                consistency=parse_consistency(consistency),
                mode=mode,
                data=data,
                epochs=epochs,
                batch_size=batch_size,
                lr=lr,
                seed=seed,
                plot=plot,
                trace=trace,
                is_plain=plain,
            )
        )


@app.command(
    cls=Command,
    context_settings={"allow_interspersed_args": False},
    epilog="Examples:\n\n[b]windlass chaos --kill server:any --every 5s --for 60s -- windlass run -s 3 --replicas 1 "
    "train.py[/b]\n\n[b]windlass chaos --drop 1% --delay 20ms --partition 'server:0,worker:1|server:1' -- python "
    "train.py[/b]",
)
def chaos(
    context: typer.Context,
    command: Annotated[
        list[str] | None, typer.Argument(metavar="-- COMMAND", help="The job, as it is run without chaos.")
    ] = None,
    kill: Annotated[
        list[str], typer.Option(metavar="NODE", help="SIGKILL: server:1, worker:2, server:any, worker:any, manager.")
    ] = [],  # noqa: B006
    stop: Annotated[
        list[str], typer.Option(metavar="NODE", help="SIGSTOP, for less than a lease and for more, by turns.")
    ] = [],  # noqa: B006
    partition: Annotated[
        list[str],
        typer.Option(metavar="A|B", help="These cannot reach those, for a while: 'server:0,worker:1|server:1'."),
    ] = [],  # noqa: B006
    drop: Annotated[str, typer.Option(metavar="SHARE", help="So many frames are lost, each with its link.")] = "0%",
    delay: Annotated[str, typer.Option(metavar="TIME", help="Every frame is so much later.")] = "0ms",
    every: Annotated[str, typer.Option(metavar="TIME", help="One kill, stop or partition every so often.")] = "5s",
    length: Annotated[
        str, typer.Option("--for", metavar="TIME", help="For how long; then the job goes on undisturbed.")
    ] = "60s",
    seed: Annotated[int | None, typer.Option(metavar="N", help="Draws the order.", show_default="drawn")] = None,
    replace: Annotated[
        bool, typer.Option("--replace/--no-replace", help="Start a new server for each that is lost.")
    ] = True,
    json: Annotated[str, typer.Option(metavar="FILE", help="Write the report there, too, as JSON.")] = "",
) -> None:
    """Run a job, and kill, stop, delay and part its nodes meanwhile.

    It ends in a report: faults fired, recovery times, acknowledged pushes lost or
    counted twice. The exit status is 0 only if nothing was lost, and the job
    ended well.
    """
    from windlass.cli.chaos import Wanted
    from windlass.cli.chaos import chaos as disturb

    with _reported(context):
        code = disturb(
            Wanted(
                command=tuple(command or ()),
                kill=tuple(kill),
                stop=tuple(stop),
                partition=tuple(partition),
                drop=drop,
                delay=delay,
                every=every,
                length=length,
                seed=seed,
                replaces=replace,
                json=json,
                size=_size_of(context, command or []),
            )
        )
    raise typer.Exit(code)


def _size_of(context: typer.Context, command: list[str]) -> tuple[int, int] | None:
    """How many servers and workers a command of ours would start; None for any other, and where it cannot be told."""
    name = command[1] if len(command) > 1 and Path(command[0]).name == "windlass" else ""
    ours = getattr(context.find_root().command, "commands", {}).get(name)
    if ours is None:
        return None
    params = ours.make_context(name, command[2:], resilient_parsing=True).params
    servers, workers = params.get("servers"), params.get("workers")
    return (servers, workers) if isinstance(servers, int) and isinstance(workers, int) else None


# --- checkpoints ------------------------------------------------------------------------------------------------------

checkpoint = typer.Typer(
    cls=Group, help="Look at checkpoints that [b]store.save(path)[/b] wrote.", no_args_is_help=True
)
app.add_typer(checkpoint, name="checkpoint")

Checkpoint = Annotated[
    str,
    typer.Argument(metavar="PATH", help="A checkpoint, or a directory of them; local, or a URL.", show_default=False),
]


@checkpoint.command("ls", cls=Command, epilog="Example:\n\n[b]windlass checkpoint ls runs/7[/b]")
def checkpoint_ls(
    context: typer.Context,
    path: Checkpoint,
    json: Annotated[bool, typer.Option("--json", help="Print a list of checkpoints as JSON.")] = False,
) -> None:
    """Show the checkpoints in a directory, oldest first.

    It looks at names and sizes; [b]verify[/b] reads every byte. The exit status is 1
    when there is none.
    """
    from windlass.cli.checkpoint import ls

    with _reported(context):
        code = ls(path, is_json=json)
    raise typer.Exit(code)


@checkpoint.command(
    "verify", cls=Command, epilog="Example:\n\n[b]windlass checkpoint verify s3://bucket/runs/7/step-000042[/b]"
)
def checkpoint_verify(context: typer.Context, path: Checkpoint) -> None:
    """Read every byte of a checkpoint, or of all in a directory.

    What is missing, cut short or altered is named: file, key, slot. The exit
    status is 1 if there is such a thing.
    """
    from windlass.cli.checkpoint import check

    with _reported(context):
        code = check(path)
    raise typer.Exit(code)


@checkpoint.command(
    "diff", cls=Command, epilog="Example:\n\n[b]windlass checkpoint diff runs/7/step-000040 runs/7/step-000042[/b]"
)
def checkpoint_diff(
    context: typer.Context,
    before: Annotated[str, typer.Argument(metavar="A", help="A checkpoint, or a directory: its newest.")],
    after: Annotated[str, typer.Argument(metavar="B", help="Another.")],
) -> None:
    """Show what differs between two checkpoints, and by how much.

    Keys added and removed, declarations changed, and for each array the largest
    difference. The exit status is 1 if anything differs.
    """
    from windlass.cli.checkpoint import diff

    with _reported(context):
        code = diff(before, after)
    raise typer.Exit(code)


# --- logistic regression ----------------------------------------------------------------------------------------------

logistic = typer.Typer(
    cls=FitByDefault,
    help="Fit a sparse logistic regression: [b]windlass logistic FILE[/b].",
    rich_markup_mode="rich",
)
app.add_typer(logistic, name="logistic")

Examples = Annotated[
    str, typer.Argument(metavar="FILE", help="libsvm or CSV; may be .gz, .bz2 or .xz.", show_default=False)
]
Format = Annotated[
    str, typer.Option("--format", metavar="NAME", help="[b]libsvm[/b], [b]csv[/b] or [b]tsv[/b]; auto: by the name.")
]
Label = Annotated[str, typer.Option(metavar="COLUMN", help="In CSV, the label's column: its name, or number from 1.")]


@logistic.command(
    "fit",
    cls=Unnamed,
    epilog="Examples:\n\n[b]windlass logistic train.libsvm --l1 1 --test test.libsvm --save model.npz[/b]\n\n"
    "[b]windlass logistic clicks.csv --label clicked --l1 4 --workers 4 --delay 2[/b]\n\n"
    "A saved model is applied by another command, [b]windlass logistic predict --help[/b]:\n\n"
    "[b]windlass logistic predict model.npz test.libsvm > labels.txt[/b]",
)
def logistic_fit(
    context: typer.Context,
    file: Examples,
    l1: Annotated[float, typer.Option(metavar="WEIGHT", help="Of the penalty; 1 / C of other programs.")] = 1.0,
    algorithm: Annotated[
        int,
        typer.Option(
            "--algorithm", "-a", metavar="1|3", help="[b]1[/b]: whole gradients. [b]3[/b]: delayed blocks of features."
        ),
    ] = 3,
    servers: Servers = 1,
    workers: Workers = 2,
    consistency: Annotated[
        str, typer.Option(metavar="POLICY", help="[b]sequential[/b], [b]bounded:N[/b] or [b]eventual[/b].")
    ] = "sequential",
    delay: Annotated[
        int, typer.Option(min=0, metavar="N", help="Of algorithm 3: so many blocks are under way at once.")
    ] = 0,
    blocks: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="Of algorithm 3.", show_default="as many as an example has features"),
    ] = 0,
    intercept: Annotated[
        bool, typer.Option("--intercept/--no-intercept", help="A bias, which is not penalised.")
    ] = True,
    max_passes: Annotated[
        int, typer.Option(min=0, metavar="N", help="Over the data.", show_default="200; algorithm 1: 2000")
    ] = 0,
    tolerance: Annotated[
        float, typer.Option(metavar="SHARE", help="End when the objective falls by less than this much of itself.")
    ] = 1e-7,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="For the order of blocks.")] = 0,
    test: Annotated[str, typer.Option(metavar="FILE", help="Score the model on these examples.")] = "",
    save: Annotated[str, typer.Option(metavar="FILE", help="Write the model there, as .npz.")] = "",
    format: Format = "auto",
    label: Label = "1",
) -> None:
    """Fit a sparse logistic regression, with an L1 penalty, to a file of examples.

    The word [b]fit[/b] may be left out. A libsvm line is [b]label index:value ...[/b];
    labels are 1, and -1 or 0. The objective is the sum of the logistic losses
    and of [b]l1[/b] times every weight's magnitude.
    """
    from windlass.apps.logistic import Plan, Source
    from windlass.cli.logistic import Job, fit
    from windlass.cli.run import parse_consistency

    with _reported(context):
        plan = Plan(
            l1=l1,
            algorithm=algorithm,
            intercept=intercept,
            consistency=parse_consistency(consistency),
            delay=delay,
            blocks=blocks,
            max_passes=max_passes,
            tolerance=tolerance,
            seed=seed,
        )
        source = Source(file, format, label)
        fit(Job(source=source, plan=plan, servers=servers, workers=workers, test=test, save=save))


@logistic.command(
    "predict", cls=Command, epilog="Example:\n\n[b]windlass logistic predict model.npz test.libsvm > labels.txt[/b]"
)
def logistic_predict(
    context: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="What --save wrote.", show_default=False)],
    file: Examples,
    chance: Annotated[bool, typer.Option("--chance", help="Print the probability of +1 instead of the label.")] = False,
    format: Format = "auto",
    label: Label = "1",
) -> None:
    """Print a label for each example of a file, one a line."""
    from windlass.apps.logistic import Source
    from windlass.cli.logistic import predict

    with _reported(context):
        predict(model, Source(file, format, label), is_chance=chance)
