"""How the help of a command looks, where typer would have it otherwise."""

from __future__ import annotations

from typing import Any

import typer.core


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


class Unnamed(Command):
    """The usage of `fit` is what one types, and one does not type its name."""

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        formatter.write_usage(ctx.parent.command_path, " ".join(self.collect_usage_pieces(ctx)))
