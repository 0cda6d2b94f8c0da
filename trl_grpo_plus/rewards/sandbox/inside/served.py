"""The program's side of a session with a tester: objects by number, and the operations that may be asked for."""

from __future__ import annotations

import builtins
import contextlib
import importlib
import operator
import sys
import types
from collections.abc import Callable
from typing import Any

from . import codec, frames, streams

_COROUTINE = 0x80  # inspect.CO_COROUTINE
_OPERATORS = (
    "add sub mul truediv floordiv mod divmod pow matmul and_ or_ xor lshift rshift eq ne lt le gt ge "
    "neg pos invert abs getitem setitem delitem contains index"
)


def _run_coroutine(function: Any, *arguments: Any, **named: Any) -> Any:
    import asyncio  # large, and rarely needed

    async def wait() -> Any:
        return await function(*arguments, **named)

    return asyncio.run(wait())


def _within(value: Any, steps: list[tuple[str, Any]], method: str, *arguments: Any, **named: Any) -> Any:
    for operation, key in steps:
        value = OPERATIONS[operation](value, key)
    return getattr(value, method)(*arguments, **named)


def _seed(module: str, value: Any) -> None:
    with contextlib.suppress(Exception):
        (sys.modules["numpy"].random if module == "numpy" else importlib.import_module("random")).seed(value)


OPERATIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(operator, name, None) or getattr(builtins, name) for name in _OPERATORS.split()},
    **{f.__name__: f for f in (len, iter, next, str, repr, bool, hash, int, float, complex, bytes, format, round)},
    "reversed": reversed,
    "type": type,
    "getattr": getattr,
    "setattr": setattr,
    "delattr": delattr,
    "isinstance": isinstance,
    "issubclass": issubclass,
    "enter": lambda o: o.__enter__(),
    "exit": lambda o, failed: o.__exit__(*((failed, failed(), None) if failed else (None, None, None))),
    "call": lambda f, *a, **k: f(*a, **k),
    "await": _run_coroutine,
    "within": _within,
    "seed": _seed,
}


class Session:
    """Objects that the tester holds by number, and the channel to it.

    Args:
        channel: Descriptor of the socket to the tester.
    """

    def __init__(self, channel: int) -> None:
        self._channel = channel
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._callbacks: dict[int, tuple[int, Callable[..., Any]]] = {}
        self._functions: dict[int, Callable[..., Any]] = {}

    def hello(self, names: dict[str, Any]) -> dict[str, Any]:
        """Returns the first message: the objects that tests name, and the base classes of the classes among them."""
        bases = {n: [c.__name__ for c in v.__mro__] for n, v in names.items() if isinstance(v, type)}
        return {"names": {n: codec.encode(v, self._handle) for n, v in names.items()}, "bases": bases}

    def _handle(self, value: Any) -> Any:
        if id(value) in self._callbacks:
            return [self._callbacks[id(value)][0], "callback"]
        number = self._numbers.setdefault(id(value), len(self._objects))  # kept below, so that the id stays its own
        if number == len(self._objects):
            self._objects.append(value)
        kind = "class" if isinstance(value, type) else "call" if callable(value) else "object"
        function = value.__func__ if type(value) is types.MethodType else value
        if type(function) is types.FunctionType and function.__code__.co_flags & _COROUTINE:
            kind = "async"
        return [number, kind]

    def _resolve(self, body: Any) -> Any:
        kind, which = body
        if kind == "object":
            return self._objects[which]
        if kind == "builtin":
            return getattr(builtins, which)
        if which not in self._functions:  # one function of the tests is one here: programs keep them in sets
            self._functions[which] = self._callback(which)
        return self._functions[which]

    def _callback(self, number: int) -> Callable[..., Any]:
        def call_back(*arguments: Any, **named: Any) -> Any:
            encoded = [codec.encode(a, self._handle) for a in arguments]
            keywords = {k: codec.encode(v, self._handle) for k, v in named.items()}
            self._send({"callback": number, "arguments": encoded, "keywords": keywords})
            return self.answer_requests(nested=True)

        self._callbacks[id(call_back)] = number, call_back
        return call_back

    def answer_requests(self, nested: bool = False) -> Any:
        """Answers until the tester hangs up; nested in a callback, until its result comes.

        Raises:
            HungUp: The tester has hung up.
        """
        while True:
            request = frames.receive(self._channel)
            if nested and "result" in request:
                return codec.decode_argument(request["result"], self._resolve)
            if nested and "raised" in request:
                raise _rebuilt(request["raised"])
            answer: dict[str, Any]
            try:
                answer = self._perform(request)
            except frames.HungUp:
                raise
            except BaseException as error:
                answer = self._raised(error)
            try:
                self._send(answer)
            except (ValueError, RecursionError, MemoryError) as error:
                frames.send(self._channel, self._raised(error))

    def _send(self, message: dict[str, Any]) -> None:
        """Sends a message, with what the program has printed where the tests look at that."""
        if isinstance(sys.stdout, streams.Kept) and (text := sys.stdout.take()):
            message["printed"] = text
        frames.send(self._channel, message)

    def _perform(self, request: Any) -> dict[str, Any]:
        arguments = [codec.decode_argument(a, self._resolve) for a in request["arguments"]]
        named = {k: codec.decode_argument(v, self._resolve) for k, v in request["keywords"].items()}
        value = OPERATIONS[request["operation"]](*arguments, **named)
        answer = {"value": codec.encode(value, self._handle)}
        if request["mutates"]:
            answer["arguments"] = [codec.encode(a, self._handle) for a in arguments]
            answer["keywords"] = {k: codec.encode(v, self._handle) for k, v in named.items()}
        return answer

    def _raised(self, error: BaseException) -> dict[str, Any]:
        try:
            message = str(error)[:500].encode("utf-8", "replace").decode()
        except BaseException:
            message = ""
        raised: dict[str, Any] = {"raised": [[c.__name__ for c in type(error).__mro__], message]}
        raised["homes"] = [str(c.__module__) for c in type(error).__mro__]
        try:
            raised["arguments"] = [codec.encode(a, _no_objects) for a in error.args]
            own = vars(error).items()
            raised["attributes"] = [[k, codec.encode(v, _no_objects)] for k, v in own if isinstance(k, str)]
        except BaseException:  # the message will do
            pass
        return raised


def _no_objects(value: Any) -> Any:
    raise codec.Unsendable("no plain data")


def _rebuilt(raised: Any) -> Exception:
    names, message = raised
    for name in names:
        kind = getattr(builtins, str(name), None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            try:
                return kind(message)
            except TypeError:
                continue
    return Exception(message)
