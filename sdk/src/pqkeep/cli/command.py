"""Makes a command of a function: adds the options that all have, and ends it properly.

These may stand before the command's name too. Behind it they count more.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from inspect import Parameter, Signature, signature
from types import FrameType
from typing import Any, Concatenate, NoReturn, ParamSpec

import typer

from pqkeep.cli.failures import BROKEN_PIPE, INTERRUPTED, TERMINATED, end
from pqkeep.cli.invocation import Invocation

P = ParamSpec("P")
Command = Callable[Concatenate[Invocation, P], None]

_COMMON = signature(Invocation).parameters
_CONTEXT = Parameter("context", Parameter.KEYWORD_ONLY, annotation=typer.Context)
_DEFAULT = "DEFAULT"
"""The name of the source of values that nobody gave."""


def command(app: typer.Typer, name: str) -> Callable[[Command[P]], Command[P]]:
    """Add a command to an application; the function is called with an Invocation first."""

    def register(function: Command[P]) -> Command[P]:
        own = [*signature(function).parameters.values()][1:]

        def run(*, context: typer.Context, **values: Any) -> None:
            common = {name: values.pop(name) for name in _COMMON}
            given = _given(context, common)
            invocation = Invocation(**{**common, **given_before(context), **given})
            with _ended_properly():
                function(invocation, **values)  # type: ignore[call-arg] # mypy sees no arguments in values

        _with_parameters(run, [*own, *_COMMON.values(), _CONTEXT])
        run.__doc__ = function.__doc__
        app.command(name)(run)
        return function

    return register


def options_before_commands(app: typer.Typer, function: Callable[..., None]) -> None:
    """Take the options that all commands have before a command too, beside a function's own."""
    own = [*signature(function).parameters.values()]

    def run(*, context: typer.Context, **values: Any) -> None:
        context.obj = _given(context, values)
        function(**{each.name: values[each.name] for each in own})

    _with_parameters(run, [*own, *_COMMON.values(), _CONTEXT])
    run.__doc__ = function.__doc__
    app.callback()(run)


def given_before(context: typer.Context) -> Mapping[str, Any]:
    """Return the options that stand before the command."""
    return context.find_root().obj or {}


def _given(context: typer.Context, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the common options that somebody gave in one place."""
    sources = {name: context.get_parameter_source(name) for name in _COMMON}
    return {
        name: values[name]
        for name, source in sources.items()
        if source is not None and source.name != _DEFAULT
    }


def _with_parameters(function: Callable[..., None], parameters: list[Parameter]) -> None:
    """Let Typer see other parameters than a function has."""
    ordered = sorted(parameters, key=lambda each: each.kind)
    function.__annotations__ = {each.name: each.annotation for each in ordered}
    function.__signature__ = Signature(ordered)  # type: ignore[attr-defined] # functions may have one


@contextmanager
def _ended_properly() -> Iterator[None]:
    """Make statuses of exceptions. A signal is one, so that what is not whole is removed."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
            signal.signal(number, _terminated)
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:  # nobody reads any more
        _let_go_of_output()
        raise typer.Exit(BROKEN_PIPE) from None
    except (KeyboardInterrupt, typer.Abort):
        raise typer.Exit(INTERRUPTED) from None
    except typer.Exit:
        raise
    except Exception as error:  # noqa: BLE001 - a traceback helps nobody here, and may hold secrets
        _let_go_of_output()
        raise end(error) from None


def _let_go_of_output() -> None:
    """Write what can be written; Python would try the rest again at the end, and complain."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _terminated(number: int, frame: FrameType | None) -> NoReturn:
    raise typer.Exit(TERMINATED)
