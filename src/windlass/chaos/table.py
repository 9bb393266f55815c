"""A report as a table for a person."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from windlass._words import count, say_marked
from windlass.chaos.accounting import Finding
from windlass.chaos.report import Report, pushes_in_words, seconds_in_words


def print_report(report: Report, console: Console | None = None) -> None:
    """Print it, in 80 columns if need be."""
    console = console or Console(highlight=False)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("at", "fault", "node", "held", "recovered after", ""):
        is_number = heading in ("at", "held", "recovered after")
        table.add_column(heading, justify="right" if is_number else "left", overflow="fold", no_wrap=is_number)
    for _, row in sorted(_rows(report), key=itemgetter(0)):
        table.add_row(*row)
    console.print()
    say_marked(console, f"[bold]Chaos report[/bold]  seed {report.seed}, {report.seconds:.0f} s")
    if table.row_count:
        console.print(table)
    for label, value in _lines(report):
        say_marked(console, f"[bold]{label:<28}[/bold] {value}")
    for kind, findings in (("lost", report.findings.lost), ("counted twice", report.findings.twice)):
        for finding in findings:
            say_marked(console, f"[red]{kind}:[/red] {escape(_told(finding))}")
    verdict = "[green]nothing was lost, nothing counted twice[/green]"
    if report.job_status:
        verdict = "[yellow]nothing was lost, nothing counted twice, but the job did not end well[/yellow]"
    if not report.ok:
        verdict = f"[bold red]{escape(report.reason)}[/bold red]"
    say_marked(console, f"[bold]{'verdict':<28}[/bold] {verdict}")


def _rows(report: Report) -> Iterator[tuple[float, tuple[str, ...]]]:
    """What happened, and when."""
    for fault in report.faults:
        lasted = (seconds_in_words(fault.held_seconds), seconds_in_words(fault.recovery_seconds))
        yield fault.at, (f"{fault.at:.1f} s", fault.what, escape(fault.who), *lasted, escape(fault.note))
    for node in report.departed:
        told = "; ".join(filter(None, ("by itself", node.note)))
        yield node.at, (f"{node.at:.1f} s", "[yellow]gone[/yellow]", escape(node.who), "", "", told)
    for one in report.unfired:
        told = f"[yellow]not fired:[/yellow] {escape(one.reason)}"
        yield one.at, (f"{one.at:.1f} s", escape(one.what), "", "", "", told)


def _told(one: Finding) -> str:
    return f"{pushes_in_words(one.pushes)} of {one.worker} on '{one.key}': {one.reason}"


def _lines(report: Report) -> list[tuple[str, str]]:
    findings = report.findings
    lines = [("faults fired", f"{len(report.faults)}, not fired {len(report.unfired)}")]
    links = []
    if report.drop:
        links.append(f"{count(report.frames_lost, 'frame')} lost ({report.drop:.1%}), each with its link")
    if report.delay_seconds:
        links.append(f"{count(report.frames_late, 'frame')} {seconds_in_words(report.delay_seconds)} late")
    if report.links_refused:
        links.append(f"{count(report.links_refused, 'dial')} refused")
    if links:
        lines.append(("links", "; ".join(links)))
    longest = seconds_in_words(report.longest_push_seconds) if findings.num_acked else "–"
    lines.append(("acknowledged pushes", f"{findings.num_acked:,}; the longest took {longest}"))
    if findings.unjudged:
        lines += [("acknowledged pushes lost", "unknown"), ("counted twice", "unknown")]
    else:
        lines += [("acknowledged pushes lost", _number(report.num_lost)), ("counted twice", _number(report.num_twice))]
    if findings.num_deleted_keys:
        lines.append(("not judged", f"pushes on {count(findings.num_deleted_keys, 'key')} that the job has deleted"))
    lines.append(("samples repeated or missed", _samples(report)))
    lines.append(("the job", escape(report.job)))
    return lines


def _samples(report: Report) -> str:
    samples = report.samples
    if report.findings.unjudged:
        return "unknown"
    if samples is None:
        return "the job leases no work"
    repeated, missed = _number(samples.repeated), _number(samples.missed)
    return f"{repeated} repeated, {missed} missed, of {samples.total:,} in epochs that are done"


def _number(number: int) -> str:
    return f"[red]{number:,}[/red]" if number else "0"
