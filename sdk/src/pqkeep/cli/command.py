"""Makes a command of a function: adds the options that all have, and ends it properly."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import Signature, signature
from types import FrameType
from typing import Any, Concatenate, NoReturn, ParamSpec

import typer

from pqkeep.cli.failures import BROKEN_PIPE, INTERRUPTED, TERMINATED, end
from pqkeep.cli.invocation import Invocation

P = ParamSpec("P")
Command = Callable[Concatenate[Invocation, P], None]

_COMMON = signature(Invocation).parameters


def command(app: typer.Typer, name: str) -> Callable[[Command[P]], Command[P]]:
    """Add a command to an application; the function is called with an Invocation first."""

    def register(function: Command[P]) -> Command[P]:
        own = [*signature(function).parameters.values()][1:]
        every = [*own, *_COMMON.values()]

        def run(**values: Any) -> None:
            invocation = Invocation(**{name: values.pop(name) for name in _COMMON})
            with _ended_properly():
                function(invocation, **values)  # type: ignore[call-arg] # mypy sees no arguments in values

        run.__doc__ = function.__doc__
        run.__annotations__ = {each.name: each.annotation for each in every}
        run.__signature__ = Signature(every)  # type: ignore[attr-defined] # functions may have one
        app.command(name)(run)
        return function

    return register


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
