"""Methods that are written once for Client and AsyncClient.

A resource's method returns a description of a call. These decorators pass it to the resource's
transport. The transport's type decides between a result and an awaitable. Name, defaults and
docstring of the method stay the same.
"""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import partial, update_wrapper
from types import MethodType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    overload,
)

from pqkeep._call import Call, Pages
from pqkeep._transport import Transport

if TYPE_CHECKING:  # imports asyncio, which Client does not need
    from pqkeep._async_transport import AsyncTransport

P = ParamSpec("P")
R = TypeVar("R")
T_co = TypeVar("T_co", covariant=True)


class Resource(Protocol[T_co]):
    """A class with such methods."""

    @property
    def _transport(self) -> T_co:
        """The transport that runs the described calls."""
        ...


class Operation(Generic[P, R]):
    """A method that describes one call."""

    def __init__(
        self, describe: Callable[Concatenate[Any, P], Call[R]], *, reads_file: bool = False
    ) -> None:
        """Take the method. One that reads a file must not run on an event loop."""
        self._describe = self.describe = describe
        self._reads_file = reads_file
        self.__doc__ = describe.__doc__

    @overload
    def __get__(self, resource: None, owner: type) -> Self: ...
    @overload
    def __get__(self, resource: Resource[Transport], owner: type) -> Callable[P, R]: ...
    @overload
    def __get__(
        self, resource: "Resource[AsyncTransport]", owner: type
    ) -> Callable[P, Coroutine[Any, Any, R]]: ...
    def __get__(self, resource: Resource[Any] | None, owner: type) -> Any:
        if resource is None:
            return self
        transport = resource._transport  # noqa: SLF001 - hidden from callers, not from here
        return _method(
            partial(transport.run, reads_file=self._reads_file), self._describe, resource
        )


def file_operation(describe: Callable[Concatenate[Any, P], Call[R]]) -> Operation[P, R]:
    """Decorate a method that reads a file before it describes its call."""
    return Operation(describe, reads_file=True)


class Listing(Generic[P, R]):
    """A method that describes a list's pages and yields its members one by one."""

    def __init__(self, describe: Callable[Concatenate[Any, P], Pages[R]]) -> None:
        """Take the method."""
        self._describe = describe
        self.__doc__ = describe.__doc__

    @overload
    def __get__(self, resource: None, owner: type) -> Self: ...
    @overload
    def __get__(self, resource: Resource[Transport], owner: type) -> Callable[P, Iterator[R]]: ...
    @overload
    def __get__(
        self, resource: "Resource[AsyncTransport]", owner: type
    ) -> Callable[P, AsyncIterator[R]]: ...
    def __get__(self, resource: Resource[Any] | None, owner: type) -> Any:
        if resource is None:
            return self
        transport = resource._transport  # noqa: SLF001 - hidden from callers, not from here
        return _method(transport.members, self._describe, resource)


class WholeListing(Generic[P, R]):
    """A method that describes a list's pages and returns all members at once."""

    def __init__(self, describe: Callable[Concatenate[Any, P], Pages[R]]) -> None:
        """Take the method."""
        self._describe = describe
        self.__doc__ = describe.__doc__

    @overload
    def __get__(self, resource: None, owner: type) -> Self: ...
    @overload
    def __get__(self, resource: Resource[Transport], owner: type) -> Callable[P, tuple[R, ...]]: ...
    @overload
    def __get__(
        self, resource: "Resource[AsyncTransport]", owner: type
    ) -> Callable[P, Coroutine[Any, Any, tuple[R, ...]]]: ...
    def __get__(self, resource: Resource[Any] | None, owner: type) -> Any:
        if resource is None:
            return self
        transport = resource._transport  # noqa: SLF001 - hidden from callers, not from here
        return _method(transport.collect, self._describe, resource)


def _method(
    run: Callable[[Callable[[], Any]], Any], describe: Callable[..., Any], resource: object
) -> Callable[..., Any]:
    bound = MethodType(describe, resource)

    def method(*args: object, **named: object) -> Any:
        return run(partial(bound, *args, **named))

    return update_wrapper(method, bound)
