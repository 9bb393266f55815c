from __future__ import annotations

from windlass.cli.output import MAX_LINE_BYTES, REDRAW_SECONDS, Lines


def test_a_line_is_given_once_it_is_whole() -> None:
    lines = Lines()
    assert lines.feed(b"one\ntw", 0.0) == [b"one"]
    assert lines.feed(b"o\n\nthree", 0.0) == [b"two", b""]
    assert lines.end() == [b"three"]
    assert lines.end() == []


def test_a_windows_line_end_is_a_line_end() -> None:
    assert Lines().feed(b"one\r\ntwo\r\n", 0.0) == [b"one", b"two"]


def test_a_line_end_that_arrives_in_two_parts_is_one() -> None:
    lines = Lines()
    assert lines.feed(b"one\r", 10.0) == [b"one"]
    assert lines.feed(b"\n", 10.0) == []


def test_of_a_progress_bar_one_state_a_second_is_shown_and_the_last() -> None:
    lines = Lines()
    shown = []
    for percent in range(101):
        shown += lines.feed(b"\r%d %%" % percent, percent * REDRAW_SECONDS / 40)
    shown += lines.feed(b"\n", 3.0)
    assert shown == [b"0 %", b"40 %", b"80 %", b"100 %"]


def test_a_progress_bar_takes_no_memory() -> None:
    lines = Lines()
    for number in range(1000):
        lines.feed(b"\r%d %s" % (number, b"#" * 1000), 0.0)
    assert len(lines._buffer) < 4000
    assert lines.end() == [b"999 " + b"#" * 1000]


def test_an_endless_line_is_cut() -> None:
    lines = Lines()
    given = lines.feed(b"x" * (MAX_LINE_BYTES + 1), 0.0)
    assert given == [b"x" * (MAX_LINE_BYTES + 1)]
    assert lines.end() == []
