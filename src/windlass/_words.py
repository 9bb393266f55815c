"""How a command speaks: words are whole on a terminal, and lines are whole elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # nodes, which come this way too, do without it
    from rich.console import Console
    from rich.text import Text


def count(number: int, noun: str) -> str:
    """A number of things: "1 server", "2,000 keys"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def say(console: Console, text: str | Text) -> None:
    """Print a text as it is: folded on a terminal, and one line in a file, to be searched."""
    from rich.text import Text

    shown = Text(text) if isinstance(text, str) else text.copy()
    if console.is_terminal:
        shown.plain = folded(shown.plain, console.width)
    console.print(shown, soft_wrap=True)


def say_marked(console: Console, markup: str) -> None:
    """The same, of a text with rich's marks."""
    from rich.text import Text

    say(console, Text.from_markup(markup, emoji=False))


def folded(text: str, width: int) -> str:
    """Lines that are too wide, broken between words: a line end takes the place of a space, so that it is as long as
    it was. A word that is longer than a line, as a path may be, stays whole."""
    return "\n".join(_folded(line, width) for line in text.split("\n"))


def _folded(line: str, width: int) -> str:
    begin, first = 0, len(line) - len(line.lstrip())  # an indented line is not broken before its first word
    while len(line) - begin > width:
        space = line.rfind(" ", max(begin, first), begin + width + 1)
        if space < 0:
            space = line.find(" ", begin + width)
        if space < 0:
            break
        line = f"{line[:space]}\n{line[space + 1 :]}"
        begin = space + 1
    return line
