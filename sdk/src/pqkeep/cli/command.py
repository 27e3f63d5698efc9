"""Makes commands of functions, and runs the program: streams, signals and exit status.

The options of all commands may also stand before the command's name. An option after the name
overrides it.
"""

import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import Parameter, Signature, signature
from types import FrameType
from typing import TYPE_CHECKING, Any, Concatenate, NoReturn, ParamSpec, TextIO

import typer

from pqkeep.cli.failures import BROKEN_PIPE, INTERRUPTED, OF_OTHERS, TERMINATED, end
from pqkeep.cli.invocation import Invocation
from pqkeep.errors import NotFoundError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

P = ParamSpec("P")
Command = Callable[Concatenate[Invocation, P], None]

_COMMON = signature(Invocation).parameters
_CONTEXT = Parameter("context", Parameter.KEYWORD_ONLY, annotation=typer.Context)
_DEFAULT = "DEFAULT"
"""The name of the source of default values."""
_BETWEEN_INTERRUPTIONS = 0.01
"""The pause between interruptions in seconds."""


def command(app: typer.Typer, name: str) -> Callable[[Command[P]], Command[P]]:
    """Add a command to an application. The function's first argument is an Invocation."""

    def register(function: Command[P]) -> Command[P]:
        own = [*signature(function).parameters.values()][1:]

        def run(*, context: typer.Context, **values: Any) -> None:
            common = {name: values.pop(name) for name in _COMMON}
            given = _given(context, common)
            invocation = Invocation(**{**common, **given_before(context), **given})
            with _listing(app):
                function(invocation, **values)  # type: ignore[call-arg] # mypy sees no arguments in values

        _with_parameters(run, [*own, *_COMMON.values(), _CONTEXT])
        run.__doc__ = function.__doc__
        app.command(name)(run)
        return function

    return register


@contextmanager
def _listing(app: typer.Typer) -> Iterator[None]:
    """Add a hint to NotFoundError in the block: the command that lists the group's objects."""
    try:
        yield
    except NotFoundError as error:
        if error.field in OF_OTHERS or "list" not in {one.name for one in app.registered_commands}:
            raise
        next_step = f"check the name; list what exists: pqkeep {app.info.name} list"
        raise end(error, next_step=next_step) from None


def options_before_commands(app: typer.Typer, function: Callable[..., None]) -> None:
    """Let a command's group take its own options and the common options."""
    own = [*signature(function).parameters.values()]

    def run(*, context: typer.Context, **values: Any) -> None:
        context.obj = _given(context, values)
        function(**{parameter.name: values[parameter.name] for parameter in own})

    _with_parameters(run, [*own, *_COMMON.values(), _CONTEXT])
    run.__doc__ = function.__doc__
    app.callback()(run)


def given_before(context: typer.Context) -> Mapping[str, Any]:
    """Return the options before the command."""
    return context.find_root().obj or {}


def _given(context: typer.Context, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the common options of one place on the command line."""
    sources = {name: context.get_parameter_source(name) for name in _COMMON}
    return {
        name: values[name]
        for name, source in sources.items()
        if source is not None and source.name != _DEFAULT
    }


def _with_parameters(function: Callable[..., None], parameters: list[Parameter]) -> None:
    """Make Typer see other parameters than the function's own."""
    ordered = sorted(parameters, key=lambda parameter: parameter.kind)
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in ordered}
    function.__signature__ = Signature(ordered)  # type: ignore[attr-defined] # functions may have one


class Program(typer.Typer):
    """An application that ends its process itself, always without a traceback."""

    def __call__(self) -> NoReturn:
        """Run, and exit with the status of docs/cli.md."""
        with _ended_by_signals():
            _take_streams()
            status = self._status()
        _let_go_of_output()
        sys.exit(status)

    def _status(self) -> int:
        try:
            status = self._run()
            if status == 0:
                sys.stdout.flush()
        except BrokenPipeError:
            _drop_output()  # click's stream hides that it cannot be flushed
            return BROKEN_PIPE
        except (KeyboardInterrupt, typer.Abort):
            return INTERRUPTED
        except Exception as error:  # noqa: BLE001 - a traceback may hold secrets
            if isinstance(error.__context__, SystemExit):  # a signal came while a lock was held
                return int(str(error.__context__.code))
            _let_go_of_output()
            return end(error).exit_code
        return status

    def _run(self) -> int:
        try:
            super().__call__()
        except SystemExit as ended:  # always; of these two Typer makes status 1
            if isinstance(ended.__context__, BrokenPipeError | typer.Abort):
                raise ended.__context__ from None
            return ended.code if isinstance(ended.code, int) else 0
        return 0


class _Standard(io.FileIO):
    """A standard stream that adds its name to errors."""

    def __init__(self, descriptor: int, mode: str, name: str, *, is_lossy: bool = False) -> None:
        """Use a descriptor. If it is closed, every use raises an error.

        A lossy stream drops text that it cannot write, because no stream is left for an error.
        """
        try:
            os.fstat(descriptor)
        except OSError:  # no file that is opened later may get this number
            wrong_way = os.O_WRONLY if mode == "r" else os.O_RDONLY
            opened = os.open(os.devnull, wrong_way)
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
        super().__init__(descriptor, mode, closefd=False)
        self._name = name
        self._is_lossy = is_lossy

    def readinto(self, buffer: "WriteableBuffer", /) -> int | None:
        with self._named():
            return super().readinto(buffer)

    def write(self, data: "ReadableBuffer", /) -> int:
        try:
            with self._named():
                return super().write(data)
        except OSError:
            if self._is_lossy:
                return memoryview(data).nbytes
            raise

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            error.filename = self._name
            raise


def _take_streams() -> None:
    """Replace the standard streams, which may be closed, full or of another encoding."""
    sys.stdin = io.TextIOWrapper(
        io.BufferedReader(_Standard(0, "r", "standard input")),
        encoding=_encoding(sys.stdin),
        errors="surrogateescape",
    )
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(_Standard(1, "w", "standard output")),
        encoding=_encoding(sys.stdout),
        errors="replace",
        line_buffering=os.isatty(1),
    )
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(_Standard(2, "w", "standard error", is_lossy=True)),
        encoding=_encoding(sys.stderr),
        errors="backslashreplace",
        line_buffering=True,
    )


def _encoding(stream: TextIO | None) -> str | None:
    """Return the encoding of a stream. None is the locale's encoding."""
    return None if stream is None else stream.encoding


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Turn signals into exceptions, so that incomplete files are removed.

    A second signal, or a signal after the block, ends the process at once.
    """
    numbers = [
        number
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN  # as nohup has it
    ]
    is_handled = threading.Event()

    def handle(number: int, frame: FrameType | None) -> NoReturn:
        is_handled.set()
        for other in numbers:
            signal.signal(other, signal.SIG_DFL)
        sys.exit(INTERRUPTED if number == signal.SIGINT else TERMINATED)

    with _noticed(numbers, is_handled):  # an exception while its thread starts would break locks
        try:
            for number in numbers:
                signal.signal(number, handle)
            yield
        finally:
            for number in numbers:
                signal.signal(number, signal.SIG_DFL)


def _pipe() -> tuple[int, int]:
    """Return the ends of a pipe. They never take the number of a closed standard input."""
    import fcntl  # noqa: PLC0415 - Windows has none

    ends = os.pipe()
    reading, writing = (fcntl.fcntl(pipe_end, fcntl.F_DUPFD_CLOEXEC, 3) for pipe_end in ends)
    for pipe_end in ends:
        os.close(pipe_end)
    return reading, writing


@contextmanager
def _noticed(numbers: Sequence[int], is_handled: threading.Event) -> Iterator[None]:
    """Interrupt the main thread's system call until the handler of a signal has run.

    A signal just before a blocking system call does not end that call, and Python cannot run the
    handler. A thread learns of each signal by a pipe, and interrupts the call by SIGURG.
    """
    if not hasattr(signal, "pthread_kill"):  # Windows
        yield
        return
    reading, writing = _pipe()
    os.set_blocking(writing, False)
    main = threading.get_ident()

    def interrupt() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)  # the main thread may have them blocked
        while arrived := os.read(reading, 1):
            while arrived[0] in numbers and not is_handled.wait(_BETWEEN_INTERRUPTIONS):
                signal.pthread_kill(main, signal.SIGURG)

    thread = threading.Thread(target=interrupt, name="signals", daemon=True)
    signal.signal(signal.SIGURG, lambda *_: None)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(-1)
        is_handled.set()
        os.close(writing)
        thread.join()
        os.close(reading)
        signal.signal(signal.SIGURG, signal.SIG_DFL)


def _drop_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _let_go_of_output() -> None:
    """Write the rest of the output, if possible.

    Otherwise Python would try again at the end, and complain.
    """
    try:
        sys.stdout.flush()
    except OSError:
        _drop_output()
