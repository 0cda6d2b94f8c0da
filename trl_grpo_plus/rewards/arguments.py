"""Options of a verifier, as YAML and command lines write them, in the types that its signature asks for."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Mapping
from typing import Any

from ..errors import UserError


def converted(name: str, target: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `options` converted to the annotations of `target`: `"5"` to `5` for an `int`, `[1, 2]` to a tuple.

    Args:
        name: The verifier's name, for messages.
        target: The function or class that takes the options.
        options: Values by option; all of them are parameters of `target`. Those without an annotation, or with one
            that cannot be checked, stay as they are.

    Raises:
        UserError: A value does not have the type; the message names the option, the value and the type.
    """
    if not options:
        return {}
    from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError
    from pydantic.errors import PydanticSchemaGenerationError

    hints = _hints(target)
    typed = dict(options)
    for key, value in options.items():
        if key not in hints:
            continue
        try:
            adapter: TypeAdapter[Any] = TypeAdapter(hints[key], config=ConfigDict(coerce_numbers_to_str=True))
        except (PydanticSchemaGenerationError, PydanticUserError):
            continue  # a type that pydantic knows nothing of
        try:
            # `true` is no number, though Python takes it for one
            typed[key] = adapter.validate_python(value, strict=True if isinstance(value, bool) else None)
        except ValidationError as error:
            first = error.errors()[0]
            where = "".join(f"[{part}]" for part in first["loc"] if not str(part).startswith(("int", "str", "float")))
            raise UserError(
                f"reward `{name}`: option `{key}{where}` cannot be {value!r}: expected {_shown(hints[key])}"
                f" ({first['msg']})"
            ) from error
    return typed


def _hints(target: Any) -> dict[str, Any]:
    source = target.__init__ if inspect.isclass(target) else target
    try:
        return typing.get_type_hints(source)
    except Exception:  # an annotation that cannot be resolved: nothing to check with
        return {}


def _shown(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")
