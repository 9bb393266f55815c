"""How the help of a command looks, where typer would have it otherwise."""

from __future__ import annotations

import re
from typing import Any

import typer.core

_TOO_SMALL = re.compile(r"(?:greater than or equal to |in the range x>=)(\d+)")  # as one typer or another puts it


class _Plain:
    """Typer writes the type of everything after its name. A flag takes no value and shows none, nor does --help, which
    no declaration of ours reaches; an argument is named by what it is, and `<list[str]>` says nothing more."""

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if param.param_type_name == "argument":
                param.display_type_rich = _no_type
            elif param.is_flag:
                param.metavar = ""
        return params

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As typer's; a number that is too small is told in our words."""
        try:
            left: list[str] = super().parse_args(ctx, args)  # type: ignore[misc]
        except typer.BadParameter as error:
            if found := _TOO_SMALL.search(error.message):
                error.message = f"expected a number of at least {found[1]}"
            raise
        return left


def _no_type(ctx: Any) -> None:
    return None


class Command(_Plain, typer.core.TyperCommand):
    """One command."""


class Group(_Plain, typer.core.TyperGroup):
    """A command that has others below it."""


class FitByDefault(Group):
    """`logistic FILE` is `logistic fit FILE`, and its help is that of `fit`, which names the other commands."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or args[0] not in self.commands:
            args = ["fit", *(args or ["--help"])]
        return super().parse_args(ctx, args)


class _UnnamedContext(typer.core.TyperCommand.context_class):  # type: ignore[misc, valid-type]
    @property
    def command_path(self) -> str:
        return str(self.parent.command_path)


class Unnamed(Command):
    """The usage of `fit`, and what an error says to try, is what one types; and one does not type its name."""

    context_class = _UnnamedContext
