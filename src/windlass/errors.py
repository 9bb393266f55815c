"""What can go wrong, in three families.

    WindlassError
    ├── UsageError       the caller broke a rule: wrong shape, unknown key, push after close
    │   └── DeletedKey       the key was deleted under whoever uses it
    ├── ClusterError     the cluster changed: a node died, a run was stopped
    │   ├── TimeoutError     a wait reached its deadline (also a builtin TimeoutError)
    │   ├── LostRange        a range of a key is gone with the servers that held it
    │   └── DamagedCheckpoint    files of a checkpoint are missing, cut short or altered
    └── PeerError        a peer broke protocol: malformed frame, wrong token, oversized message

A message says what happened, with whom, and what to do next.
"""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, cast

Called = TypeVar("Called", bound=Callable[..., Any])


class WindlassError(Exception):
    """The root of every error that Windlass raises on purpose."""


class UsageError(WindlassError, ValueError):
    """The caller broke a rule; repeating the call unchanged fails again."""


class DeletedKey(UsageError):
    """The key was deleted under whoever uses it. It may have been made anew since, by the same name."""


class ClusterError(WindlassError, RuntimeError):
    """The cluster changed under the call; the call itself was in order."""


class TimeoutError(ClusterError, builtins.TimeoutError):
    """A wait reached its deadline. The text names whom it waited for, on which key, and since when."""


class LostRange(ClusterError):
    """A range of a key was held only by servers that are gone."""

    def __init__(
        self,
        key: str,
        lo: int,
        hi: int,
        server: str,
        checkpoint: str = "",
        is_restored: bool = False,
        unit: str = "elements",
    ) -> None:
        """`is_restored` where a cluster goes back to its checkpoint by itself. What is counted of a table is slots."""
        if not checkpoint:
            none = "no checkpoint was saved yet"
            none = f"on_server_loss='restore' has nothing to go back to, {none}" if is_restored else none
            what_to_do = f"{none}: begin anew, with replicas=1 or an earlier save (checkpoint_every=)"
        elif is_restored:
            back = f"goes back to the last checkpoint, '{checkpoint}', at most three times a run"
            what_to_do = f"on_server_loss='restore' {back}"
        else:
            what_to_do = (
                f"restart the cluster and load the last checkpoint, '{checkpoint}', or have that done by "
                "Cluster(on_server_loss='restore')"
            )
        super().__init__(
            f"{unit} [{lo}, {hi}) of '{key}' were held by {server}, which died, and by no replica; {what_to_do}"
        )
        self.key, self.lo, self.hi, self.server, self.checkpoint = key, lo, hi, server, checkpoint
        self.is_restored, self.unit = is_restored, unit

    def __reduce__(self) -> tuple[type[LostRange], tuple[str, int, int, str, str, bool, str]]:
        told = (self.key, self.lo, self.hi, self.server, self.checkpoint, self.is_restored, self.unit)
        return type(self), told


class DamagedCheckpoint(ClusterError):
    """Files of a checkpoint are missing, cut short or altered. Each problem names the file, and what it held."""

    def __init__(self, path: str, problems: Sequence[str], instead: str = "load an earlier one") -> None:
        super().__init__(
            f"the checkpoint '{path}' is damaged: {'; '.join(problems)}; {instead}; "
            "`windlass checkpoint verify` reads all of one"
        )
        self.path, self.problems, self.instead = path, tuple(problems), instead

    def __reduce__(self) -> tuple[type[DamagedCheckpoint], tuple[str, tuple[str, ...], str]]:
        return type(self), (self.path, self.problems, self.instead)


class PeerError(WindlassError, ConnectionError):
    """A peer broke protocol; its link is closed and no other link is harmed."""


MAX_TEXT = 2000
"""How many characters of a foreign error's text are passed on."""


def text_of(error: BaseException) -> str:
    """The text of what code that is not ours has raised, so that it can be sent: it is not too long, it can be encoded
    (a file's name in it may not), and an error that cannot even say what it is does no harm."""
    try:
        text = str(error)
    except Exception as problem:
        text = f"(its text cannot be had: {type(problem).__name__})"
    if len(text) > MAX_TEXT:
        text = f"{text[:MAX_TEXT]}… ({len(text):,} characters)"
    return text.encode("utf-8", "backslashreplace").decode()


def in_words(error: BaseException) -> str:
    """The same, after its kind."""
    text = text_of(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def unknown_options(called: str, unknown: Iterable[str], known: Sequence[str]) -> UsageError:
    """The error of a caller who gave options that there are not, with the likeliest that were meant."""
    import difflib  # only where somebody has made a mistake: this module is every command's

    given = list(unknown)
    near = (difflib.get_close_matches(one, known, 1) for one in given)
    hint = "".join(f"did you mean {found[0]}? " for found in near if found)
    noun = "option" if len(given) == 1 else "options"
    return UsageError(f"{called}() got unknown {noun} {', '.join(given)}; {hint}known: {', '.join(known)}")


def options_checked(called: Called) -> Called:
    """The same call, or class, where arguments that it does not take, or lacks, are told in our words instead of
    Python's. It costs a call more, so it is not for what is called in a training loop."""
    if isinstance(called, type):
        called.__init__ = options_checked(called.__init__)  # type: ignore[misc]
        return called

    @functools.wraps(called)
    def checked(*args: Any, **options: Any) -> Any:
        try:
            return called(*args, **options)
        except TypeError:
            if error := _misfit(called, args, options):
                raise error from None
            raise

    return cast(Called, checked)


def _misfit(called: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> UsageError | None:
    """What is wrong with the arguments of a call that has raised TypeError; None if nothing is. Python binds arguments
    before it runs anything: where they fit, the error is from inside the call, and is not ours to rename."""
    import inspect

    signature = inspect.signature(called)
    try:
        signature.bind(*args, **options)
    except TypeError:
        pass
    else:
        return None
    words = called.__qualname__.split(".")
    name = words[-2 if words[-1] == "__init__" else -1]
    parameters = list(signature.parameters.values())
    if parameters and parameters[0].name == "self":
        parameters, args = parameters[1:], args[1:]
    kinds = {each.kind for each in parameters}
    known = [each.name for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    unknown = [option for option in options if option not in known]
    if unknown and inspect.Parameter.VAR_KEYWORD not in kinds:
        return unknown_options(name, unknown, known)
    placed = [each.name for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    given = {*placed[: len(args)], *options}
    lacks = [each.name for each in parameters if each.name in known and each.default is each.empty]
    lacks = [each for each in lacks if each not in given]
    if len(args) > len(placed) and inspect.Parameter.VAR_POSITIONAL not in kinds:
        return _surplus(name, len(args), len(placed), lacks or [each for each in known if each not in given])
    if lacks:
        return UsageError(f"{name}() needs {' and '.join(lacks)}")
    twice = [each for each in placed[: len(args)] if each in options]
    return UsageError(f"{name}() got {twice[0]} twice: by its place, and by name") if twice else None


def _surplus(called: str, given: int, most: int, by_name: Sequence[str]) -> UsageError:
    """The error of a caller who gave too many arguments without a name."""
    noun = "argument" if most == 1 else "arguments"
    if not by_name:
        return UsageError(f"{called}() takes {most} {noun}, got {given}")
    meant = f"give {by_name[0]}= by name" if len(by_name) == 1 else f"give others by name: {', '.join(by_name)}"
    return UsageError(f"{called}() takes {most or 'no'} {noun} beside options, got {given}: {meant}")
