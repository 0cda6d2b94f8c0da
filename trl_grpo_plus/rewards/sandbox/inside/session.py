"""The tester's end of the channel to a program: asks, and makes objects, exceptions and callbacks of what comes back.

What comes is from an enemy. Anything but a well-formed answer ends the tests with a failure; it is never raised into
the tests, where an `except` of theirs could take it for what they wait for.
"""

from __future__ import annotations

import builtins
import contextlib
import itertools
import sys
import types
from collections.abc import Callable
from typing import Any, NoReturn

from . import codec, frames
from .checks import Asserts
from .proxy import AsyncProxy, Proxy, is_named_class, made_by_tests, named_class, number_of

_OF_PROGRAM = "_of_program"  # an attribute that a program cannot set: it starts with an underscore
_ENDINGS = ("StopIteration", "StopAsyncIteration", "GeneratorExit")  # raised by a call, they would end a test's loop


class Session:
    """The tester's end of the channel.

    Args:
        channel: Descriptor of the socket to the program.
        names: Names that the tests take from the program; it cannot give them others.
        classes: Names that the tests use as classes.
        asserts: Where the tests assert something.
        give_up: Called with a reason where the program is gone or talks nonsense; does not return.
        unsupported: Called with a reason where the tests need what is not supported; does not return.
    """

    def __init__(
        self,
        channel: int,
        names: frozenset[str],
        classes: frozenset[str],
        asserts: Asserts,
        give_up: Callable[[str], NoReturn],
        unsupported: Callable[[str], NoReturn],
    ) -> None:
        self.answers = 0
        self.lost = ""  # a check that failed where the program could hide it
        self.asserts = asserts
        self.exceptions: dict[str, type[Exception]] = {}
        self._channel = channel
        self._names = names
        self._classes = classes
        self._give_up = give_up
        self._unsupported = unsupported
        self._callbacks: list[Callable[..., Any]] = []
        self._numbers: dict[Any, int] = {}
        self._heard = False

    def hello(self) -> dict[str, Any]:
        """Returns the objects of the program that the tests name, exceptions as classes that tests can catch."""
        message = self._receive()
        if "names" not in message:
            self._give_up(f"the program raised {message.get('failed')}")
        try:
            bases = {str(n): [str(b) for b in names[1:]] for n, names in message["bases"].items() if n in self._names}
            for name in sorted(bases, key=lambda n: len(bases[n])):  # a class after those that it is made of
                self._add_exception(name, bases[name])
            found = {}
            for name, form in message["names"].items():
                if name not in self._names:
                    continue
                value = codec.decode(form, self._handle)
                if isinstance(value, Proxy):
                    if name in self._classes:
                        named_class(value)
                else:
                    self.answers += 1  # a variable of the program
                found[str(name)] = self.exceptions.get(name, value)
            return found
        except Exception as error:
            self._give_up(f"the program answered nonsense: {error}")

    def _add_exception(self, name: str, bases: list[str]) -> None:
        """Makes a class for one of the program's, if that is an exception."""
        for base in bases:
            kind = self.exceptions.get(base) or getattr(builtins, base, None)
            if isinstance(kind, type) and issubclass(kind, Exception):
                self.exceptions[name] = type(name, (kind,), {})
                return

    def ask(self, operation: str, *arguments: Any, mutates: bool = False, named: dict[str, Any] | None = None) -> Any:
        """Returns what the program says, or raises what it says that it raised."""
        self.answers += 1
        try:
            request = {
                "operation": operation,
                "arguments": [codec.encode_argument(a, self._send_handle) for a in arguments],
                "keywords": {k: codec.encode_argument(v, self._send_handle) for k, v in (named or {}).items()},
                "mutates": mutates,
            }
        except codec.TooMuch as error:
            self._too_much(error)
        except codec.Unsendable as error:
            self._unsupported(str(error))
        try:
            frames.send(self._channel, request)
        except ValueError as error:
            self._too_much(error)
        except frames.HungUp:
            self._give_up("the program's process has ended")
        while True:
            answer = self._receive()
            self._heard = True
            if "callback" not in answer:
                break
            self._call_back(answer)
        return self._outcome(operation, arguments if mutates else (), (named or {}) if mutates else {}, answer)

    def _too_much(self, error: Exception) -> NoReturn:
        if self._heard:  # it may hold what the program has answered
            self._give_up(f"the program's answers make a request of the tests too large: {error}")
        self._unsupported(str(error))

    def _outcome(self, operation: str, changed: tuple[Any, ...], named: dict[str, Any], answer: Any) -> Any:
        """Returns an answer's value, after copying back what the program made of arguments that it may change."""
        raised: Exception | None = None
        try:
            if "raised" in answer:
                raised = self._exception(operation, answer)
            else:
                value = codec.decode(answer["value"], self._handle)
                for mine, theirs in zip(changed, answer.get("arguments", ()), strict=False):
                    _copy_into(mine, codec.decode(theirs, self._handle))
                for key in named.keys() & answer.get("keywords", {}).keys():
                    _copy_into(named[key], codec.decode(answer["keywords"][key], self._handle))
        except MemoryError:
            self._give_up("an answer that needs too much memory")
        except Exception as error:
            self._give_up(f"the program answered nonsense: {type(error).__name__}: {error}")
        if raised is not None:
            raise raised
        return value

    def _receive(self) -> Any:
        try:
            message = frames.receive(self._channel)
        except frames.HungUp:
            self._give_up("the program's process has ended")
        except (ValueError, RecursionError, MemoryError) as error:
            self._give_up(f"the program answered nonsense: {type(error).__name__}")
        if type(message) is not dict:
            self._give_up("the program answered nonsense")
        if type(text := message.get("printed")) is str:
            with contextlib.suppress(Exception):  # where the tests have closed it
                sys.stdout.write(text)
        return message

    def _call_back(self, message: Any) -> None:
        """Runs a function of the tests that the program calls."""
        try:
            function = self._callbacks[int(message["callback"])]
            arguments = [codec.decode(a, self._handle) for a in message["arguments"]]
            named = {str(k): codec.decode(v, self._handle) for k, v in message["keywords"].items()}
        except Exception as error:
            self._give_up(f"the program answered nonsense: {error}")
        try:
            reply = {"result": codec.encode_argument(function(*arguments, **named), self._send_handle)}
        except Exception as error:
            if self.asserts.within(error.__traceback__):
                self.lost = "a check in a function that the tests gave to the program failed"
            reply = {"raised": [[c.__name__ for c in type(error).__mro__], str(error)[:300]]}
        try:
            frames.send(self._channel, reply)
        except ValueError as error:
            self._too_much(error)
        except frames.HungUp:
            self._give_up("the program's process has ended")

    def _send_handle(self, value: Any) -> Any:
        if isinstance(value, Proxy):
            return ["object", number_of(value)]
        name = str(getattr(value, "__name__", ""))
        if callable(value) and getattr(builtins, name, None) is value:
            return ["builtin", name]
        if callable(value) and not isinstance(value, type):
            number = self._numbers.setdefault(_identity(value), len(self._callbacks))
            if number == len(self._callbacks):
                self._callbacks.append(value)  # so that the id stays its own
            return ["callback", number]
        raise codec.Unsendable(f"the tests pass an object of type {type(value).__name__} to the program")

    def _handle(self, body: Any) -> Any:
        number, kind = body
        if kind == "callback" and type(number) is int and number in range(len(self._callbacks)):
            return self._callbacks[number]  # a function that the tests gave to the program, and get back
        if type(number) is not int or kind not in ("class", "call", "async", "object"):
            raise ValueError("not a handle")
        return AsyncProxy(self, number, kind) if kind == "async" else Proxy(self, number, kind)

    def _exception(self, operation: str, answer: Any) -> Exception:
        names, message = answer["raised"]
        names = [str(name) for name in names[:50]]
        if operation != "next" and any(name in _ENDINGS for name in names):
            return RuntimeError(f"the program raised {names[0]}")
        arguments = [codec.decode(form, _no_objects) for form in answer.get("arguments", ())]
        homes = [str(home) for home in answer.get("homes", ())[:50]]
        made = self._made_of(names, homes, arguments, str(message))
        for name, form in answer.get("attributes", ()):
            if str(name).isidentifier() and not str(name).startswith("_"):
                # Not `setattr`: what is a member of a built-in exception, its methods in C take for sound.
                made.__dict__[str(name)] = codec.decode(form, _no_objects)
        made.__dict__[_OF_PROGRAM] = True
        return made

    def _made_of(self, names: list[str], homes: list[str], arguments: list[Any], message: str) -> Exception:
        """Returns an exception of the first class among `names`, of the modules `homes`, that is known here."""
        for name, home in itertools.zip_longest(names, homes[: len(names)], fillvalue=""):
            kind = self.exceptions.get(name) or getattr(builtins, name, None) or _of_library(home, name)
            if isinstance(kind, type) and issubclass(kind, Exception):
                for form in (arguments, [message]):
                    try:
                        made = kind(*form)
                        if not message or str(made) == message:
                            return made
                    except Exception:  # UnicodeDecodeError takes five arguments
                        continue
                with contextlib.suppress(TypeError):
                    return kind(message)
                made = Exception.__new__(kind)  # JSONDecodeError asks for more than it keeps
                made.args = (message,)
                return made
        return Exception(message)

    def seed(self, module: str, value: Any) -> None:
        """Seeds the program's random numbers; that asks nothing of it."""
        answers = self.answers
        self.ask("seed", module, value)
        self.answers = answers

    def call(self, proxy: Proxy, arguments: tuple[Any, ...], named: dict[str, Any], mutates: bool) -> Any:
        """Calls an object of the program; what a class that the tests name makes is theirs."""
        value = self.ask("call", proxy, *arguments, named=named, mutates=mutates)
        if is_named_class(proxy) and isinstance(value, Proxy):
            made_by_tests(value)
        return value


def is_of_program(error: BaseException) -> bool:
    """Returns whether the program has raised an exception, and not the tests or what they import."""
    return _OF_PROGRAM in error.__dict__


def _identity(function: Any) -> tuple[Any, ...]:
    """Returns what tells a function from others: a bound method is made anew whenever it is looked up."""
    if isinstance(function, (types.MethodType, types.BuiltinMethodType)):
        return id(function.__self__), id(getattr(function, "__func__", None)), function.__name__
    return (id(function),)


def _of_library(home: str, name: str) -> Any:
    """Returns a class of a standard module that the tests have imported, `binascii.Error`; nothing is loaded here."""
    top = home.partition(".")[0]
    if top not in sys.stdlib_module_names or top == "unittest":  # whose exceptions skip tests
        return None
    return vars(sys.modules[home]).get(name) if home in sys.modules else None


def _no_objects(body: Any) -> Any:
    raise ValueError("an object in an exception")


def _copy_into(mine: Any, theirs: Any) -> None:
    """Makes a mutable plain value equal to what the program made of its copy; identities stay where shapes allow."""
    if type(mine) is not type(theirs):
        return
    if type(mine) is list:
        if len(mine) == len(theirs):
            for i, (old, new) in enumerate(zip(mine, theirs, strict=True)):
                if type(old) in (list, dict, set) and type(old) is type(new):
                    _copy_into(old, new)
                else:
                    mine[i] = new
        else:
            mine[:] = theirs
    elif type(mine) in (dict, set):
        mine.clear()
        mine.update(theirs)
    elif type(mine) is bytearray:
        mine[:] = theirs
    elif type(mine).__name__ == "deque":
        mine.clear()
        mine.extend(theirs)
    elif type(mine).__module__ == "numpy" and getattr(mine, "shape", None) == getattr(theirs, "shape", ()):
        mine[...] = theirs
