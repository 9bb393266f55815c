"""Stories with golden transcripts: a script above a line `---`, and below it what the nodes said to each other.

A change of the protocol shows up here as a diff that a person can read. If it is meant,
`python -m tests.scenarios.test_scenarios --write` writes the transcripts anew.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.scenarios.stage import Stage, number
from windlass.server.state import ServerState
from windlass.testing import mutants

STORIES = sorted(Path(__file__).parent.glob("*.txt"))
LINE = "\n---\n"


def play(script: str, server: type[ServerState] = ServerState) -> str:
    """The transcript of a script. Its first line is the cluster; then one thing after another happens, in the words of
    `_act`. What is said on a link that is held stays under way; where one is cut there is no link."""
    first, *lines = [line for line in script.splitlines() if line and not line.startswith("#")]
    sizes = dict(part.split("=") for part in first.split())
    stage = Stage(*(int(sizes[which]) for which in ("servers", "workers", "replicas", "slots")), server)
    for line in lines:
        stage.lines.append(f"* {line}" if stage.lines[-1].lstrip()[:1] == "*" else f"\n* {line}")
        _act(stage, line)
        stage.play()
    return "\n".join(stage.lines) + "\n"


def _act(stage: Stage, line: str) -> None:
    match line.split():
        case [who, "pushes"]:
            stage.workers[number(who)].player.push(_teller(stage, who))
        case [who, "takes", "a", "batch"]:
            stage.workers[number(who)].player.take(_teller(stage, who))
        case [who, "pushes", "its", "batch"]:
            stage.workers[number(who)].player.push(_teller(stage, who), completes=True)
        case [who, "rests"]:
            stage.act(number(who), stage.workers[number(who)].player.rest(_teller(stage, who)))
        case [who, "begins", "again"]:
            stage.act(number(who), stage.workers[number(who)].player.begin_again(_teller(stage, who)))
        case [who, "pulls"]:
            stage.workers[number(who)].player.pull(_teller(stage, who))
        case [who, "freezes"]:
            player = stage.workers[number(who)].player
            player.saving.freeze(player.entry.key, _teller(stage, who))
        case [who, "asks", "again"]:
            stage.workers[number(who)].player.saving.go_on()
        case [who, "reads", "what", "is", "frozen"]:
            player = stage.workers[number(who)].player
            player.saving.read(player.entry.key, _teller(stage, who))
        case [who, "is", "killed"]:
            stage.kill(number(who))
        case [who, "is", "stopped"]:
            stage.stopped.add(number(who))
        case [who, "goes", "on"]:
            stage.stopped.discard(number(who))
        case [who, "is", "asked", "to", "leave"]:
            stage.leave(number(who))
        case ["hold", one, "->", other]:
            stage.held.add((number(one), number(other)))
        case ["let", "go", one, "->", other]:
            stage.held.discard((number(one), number(other)))
        case ["cut", one, "-", other]:
            stage.part(number(one), number(other))
        case ["mend", one, "-", other]:
            stage.mend(number(one), number(other))
        case ["another", "manager", "comes"]:
            stage.restart_manager()
        case ["a", "server", "joins"]:
            stage.add_server()
        case [seconds, "seconds" | "second", "pass" | "passes"]:
            stage.pass_time(float(seconds))
        case _:
            raise ValueError(f"no story can tell {line!r}")


def _teller(stage: Stage, who: str):
    return lambda text: stage.lines.append(f"{who:>8}    {text}")


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.stem)
def test_the_story_goes_as_it_was_told(story):
    script, _, golden = story.read_text().partition(LINE)
    assert play(script) == golden


@pytest.mark.parametrize(
    ("story", "mutant"),
    [
        ("server-killed-before-its-chain-knew", mutants.AcksUnreplicated),
        ("link-breaks-mid-round", mutants.CountsResends),
        ("server-deposed-but-alive", mutants.InheritsEarly),
        ("worker-killed-mid-round", mutants.DecidesAlone),
        ("saved-while-pushes-go-on", mutants.SavesWhatChanges),
        ("saved-while-pushes-go-on", mutants.FreezesNow),
        ("servers-cut-from-each-other", mutants.GoesOnAlone),
    ],
    ids=lambda one: one if isinstance(one, str) else one.__name__,
)
def test_a_server_with_a_mistake_tells_another_story(story, mutant):
    script, _, golden = (Path(__file__).parent / f"{story}.txt").read_text().partition(LINE)
    assert play(script, mutant) != golden


if __name__ == "__main__":
    for path in STORIES:
        script = path.read_text().partition(LINE)[0]
        if "--write" in sys.argv:
            path.write_text(script + LINE + play(script))
        else:
            print(f"=== {path.name}\n{play(script)}")
