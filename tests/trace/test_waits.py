"""Whom a wait was on, told from the servers' records: on spans made by hand."""

from __future__ import annotations

from typing import Any

from windlass.trace.merge import Index, annotate
from windlass.trace.spans import Category, Span

MS = 1_000_000
KEY = 9
ME, OTHER, THIRD = 100, 101, 102


def stage(who: int, clock: int, at_ms: int, *, part: int = 0) -> Span:
    return Span(Category.STAGE, "stage", 1, at_ms * MS, at_ms * MS + 1, {}, (who, KEY, clock, part))


def answer(who: int, clock: int, at_ms: int) -> Span:
    return Span(Category.ANSWER, "answer", 1, at_ms * MS - 1, at_ms * MS, {}, (who, KEY, clock))


def explained(
    servers: dict[str, list[Span]],
    *,
    clock: int = 2,
    delay: int = 0,
    verb: Category = Category.PULL,
    wait_ms: tuple[int, int] = (10, 50),
) -> dict[str, Any]:
    """What is said of a wait of mine for push number `clock`, with these servers."""
    index = Index({ME: "worker-0", OTHER: "worker-1", THIRD: "worker-2"})
    for name, spans in servers.items():
        index.note(name, sorted(spans, key=lambda span: span.began_ns))
    began, ended = (ms * MS for ms in wait_ms)
    op = Span(verb, f"{verb} w", 0, began, ended, {"key": "w"}, (KEY, clock, delay, 77))
    wait = Span(Category.WAIT, "wait", 1, began, ended, {}, (77,))
    annotate([op, wait], ME, index)
    assert wait.name == f"wait on {wait.args['on']}"
    return wait.args


def test_a_wait_for_a_round_is_on_whoever_pushed_last():
    said = explained(
        {
            "server-0": [stage(ME, 2, 5), stage(OTHER, 2, 30), stage(THIRD, 2, 20), answer(ME, 2, 33)],
            "server-1": [stage(ME, 2, 6), stage(OTHER, 2, 40), stage(THIRD, 2, 21)],
        }
    )
    assert said == {
        "key": "w",
        "clock": 2,
        "on": "worker-1",
        "on_ms": 30.0,
        "behind_ms": 34.0,
        "arrived_at": "server-1",
    }


def test_a_push_counts_as_here_when_its_last_part_is_and_what_is_sent_again_does_not_make_it_late():
    said = explained(
        {"server-0": [stage(ME, 2, 5), stage(OTHER, 2, 12), stage(OTHER, 2, 14, part=1), stage(OTHER, 2, 45)]}
    )
    assert (said["on"], said["on_ms"]) == ("worker-1", 4.0)


def test_who_came_last_waited_for_the_server_that_answered_last():
    servers = {
        "server-0": [stage(OTHER, 2, 5), stage(ME, 2, 12), answer(ME, 2, 20)],
        "server-1": [stage(OTHER, 2, 5), stage(ME, 2, 12), answer(ME, 2, 48)],
    }
    said = explained(servers)
    assert (said["on"], said["on_ms"]) == ("server-1", 40.0)
    assert "behind_ms" not in said


def test_a_push_that_had_arrived_before_the_wait_began_was_not_waited_for():
    servers = {"server-0": [stage(ME, 2, 1), stage(OTHER, 2, 8), answer(ME, 2, 49)]}
    assert explained(servers)["on"] == "server-0"


def test_a_bounded_pull_is_on_whoever_is_more_than_the_delay_behind():
    servers = {
        "server-0": [stage(OTHER, 3, 30), stage(ME, 5, 5), stage(ME, 3, 1), stage(OTHER, 5, 300), answer(ME, 5, 31)]
    }
    said = explained(servers, clock=5, delay=2)
    assert (said["on"], said["on_ms"], said["behind_ms"]) == ("worker-1", 20.0, 25.0)
    assert explained(servers, clock=5, delay=3)["on"] == "server-0"
    assert explained(servers, clock=1, delay=2)["on"] != "worker-1"


def test_a_bounded_push_and_every_eventual_call_wait_for_no_other_worker():
    servers = {"server-0": [stage(OTHER, 3, 30), stage(ME, 5, 5), answer(ME, 5, 31)]}
    assert explained(servers, clock=5, delay=2, verb=Category.PUSH)["on"] == "server-0"
    assert explained(servers, clock=5, delay=-1)["on"] == "server-0"


def test_a_member_that_never_came_is_named():
    said = explained({"server-0": [stage(ME, 1, 1), stage(OTHER, 1, 2), stage(ME, 2, 9)]})
    assert said["on"] == "worker-1"
    assert said["never_came"] is True
    assert said["on_ms"] == 40.0


def test_an_earlier_task_that_had_the_same_number_is_not_mistaken_for_this_one():
    index = Index({ME: "worker-0", OTHER: "worker-1"})
    index.note("server-0", [stage(ME, 1, 1), stage(OTHER, 1, 3), stage(ME, 2, 11), stage(OTHER, 2, 30)])
    earlier = Span(Category.PULL, "pull w", 0, 1 * MS, 4 * MS, {"key": "earlier"}, (KEY, 1, 0, 77))
    op = Span(Category.PULL, "pull w", 0, 10 * MS, 31 * MS, {"key": "w"}, (KEY, 2, 0, 77))
    wait = Span(Category.WAIT, "wait", 1, 10 * MS, 31 * MS, {}, (77,))
    annotate([earlier, op, wait], ME, index)
    assert (wait.args["key"], wait.args["on_ms"]) == ("w", 20.0)


def test_of_several_keys_the_one_that_came_last_was_waited_for():
    index = Index({ME: "worker-0", OTHER: "worker-1"})
    index.note("server-0", [stage(ME, 1, 1), stage(OTHER, 1, 3)])
    ops = [
        Span(Category.PULL, "pull", 0, 10 * MS, ended * MS, {"key": key}, (number, 1, 0, 77))
        for key, number, ended in (("a", 1, 20), ("b", 2, 30), ("c", 3, 25))
    ]
    wait = Span(Category.WAIT, "wait", 1, 10 * MS, 31 * MS, {}, (77,))
    annotate([*ops, wait], ME, index)
    assert wait.args["key"] == "b"
