"""How a worker gets hold of a verifier: by the name of its module, or by value where it lives in no importable one.

A worker never imports the user's `__main__`: a training script has seldom a guard around its body, and would start to
train anew. A verifier that a script or a notebook defines is therefore sent by value (`dill`), with the globals that
it uses; so are closures and objects.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import io
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_MAX_BYTES = 1_000_000  # by value: a verifier, not the model that it happens to refer to


class CannotSend(Exception):
    """The verifier can neither be imported nor sent by value; the message says why."""


@dataclass(frozen=True)
class Spec:
    """A verifier as it is told to a worker.

    Args:
        name: The reward's name, for messages.
        module: Module to import it from, or `None` where it comes by value.
        qualname: Its name in the module.
        blob: The pickled function, class or object, where it comes by value.
        pickled_options: Its options, set when a worker builds it.
        imports: Modules that it imports when it first runs.
    """

    name: str
    module: str | None
    qualname: str
    blob: bytes | None = None
    pickled_options: bytes = b""
    imports: tuple[str, ...] = ()

    def load(self) -> Any:
        """Returns the function, class or object; raises whatever importing or unpickling it raises."""
        if self.blob is not None:
            import dill

            return dill.loads(self.blob)
        assert self.module is not None
        return _attribute(importlib.import_module(self.module), self.qualname)

    def options(self) -> dict[str, Any]:
        """Returns the options; raises whatever unpickling them raises."""
        import dill

        options: dict[str, Any] = dill.loads(self.pickled_options) if self.pickled_options else {}
        return options


def spec_of(name: str, target: Any, options: Mapping[str, Any], imports: tuple[str, ...] = ()) -> Spec:
    """Returns the spec of a verifier.

    Args:
        name: The reward's name.
        target: A function, a class, or an object with a `verify` method.
        options: The target's options; an object has none.
        imports: Modules to load in advance.

    Raises:
        CannotSend: It can neither be imported by a worker nor sent by value.
    """
    module = getattr(target, "__module__", None)
    qualname = getattr(target, "__qualname__", "")
    named = inspect.isclass(target) or inspect.isroutine(target)
    if named and module not in (None, "__main__") and _attribute(sys.modules.get(module), qualname) is target:
        return Spec(name, module, qualname, None, _pickled(dict(options)), imports)
    return Spec(name, None, qualname, _pickled(target), _pickled(dict(options)), imports)


def source_digest(target: Any) -> str:
    """Returns a digest of the source that a verifier is defined in, so that an edit makes another verifier of it.

    For this package it is all its verifiers, which share helpers; elsewhere the module's file, or the function itself.
    """
    owner = target if inspect.isclass(target) or inspect.isroutine(target) else type(target)
    module = sys.modules.get(getattr(owner, "__module__", ""), None)
    package = __package__.rpartition(".")[0]
    if module is not None and module.__name__.startswith(f"{package}."):
        from pathlib import Path

        files = sorted(Path(__file__).parents[1].rglob("*.py"))
        return hashlib.sha256(b"".join(f.read_bytes() for f in files)).hexdigest()
    for source in (module if getattr(module, "__name__", "") != "__main__" else None, owner):
        try:
            return hashlib.sha256(inspect.getsource(source).encode()).hexdigest()  # type: ignore[arg-type]
        except (OSError, TypeError):
            continue
    code = getattr(owner, "__code__", None)
    return hashlib.sha256(code.co_code if code else repr(owner).encode()).hexdigest()


def _attribute(module: Any, qualname: str) -> Any:
    found = module
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found


class _Limited(io.BytesIO):
    def write(self, data: Any) -> int:
        if self.tell() + len(data) > _MAX_BYTES:
            raise CannotSend(f"it refers to more than {_MAX_BYTES // 1000} kB")
        return super().write(data)


def _pickled(value: Any) -> bytes:
    """Returns `value` pickled, by value where it must be, or raises `CannotSend`."""
    import dill

    buffer = _Limited()
    try:
        dill.dump(value, buffer, recurse=True)
    except CannotSend:
        raise
    except Exception as error:  # pickling raises errors of many kinds
        raise CannotSend(f"{type(error).__name__}: {error}"[:200]) from error
    return buffer.getvalue()
