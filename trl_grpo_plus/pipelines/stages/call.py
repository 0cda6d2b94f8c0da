"""A stage that is a function of the user's: `call: module:function` makes data, or a model, in a directory.

The function is called as `function(output, **options)`, with an empty directory to fill. It is not resumable within:
killed, it starts anew. Its result, where it returns a mapping, goes into the record.
"""

from __future__ import annotations

import importlib
import inspect
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from ...errors import UserError
from ..spec import StageSpec, resolve
from . import Place


def find_function(call: str, options: Mapping[str, Any]) -> Callable[..., Any]:
    """Returns the function that `module:function` names.

    Raises:
        UserError: There is none, or it does not take the options.
    """
    module_name, _, name = call.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        function = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"call: `{call}` cannot be loaded: {error}") from error
    try:
        inspect.signature(function).bind(Path(), **options)
    except TypeError as error:
        raise UserError(f"call: `{call}` cannot be called as it is written: {error}") from error
    return function  # type: ignore[no-any-return]


def source_of(call: str) -> str:
    """Returns the file that defines the function of a call: a stage depends on its content."""
    module = importlib.import_module(call.partition(":")[0])
    return str(module.__file__)


def run(stage: StageSpec, place: Place, console: Console) -> dict[str, Any]:
    """Calls the function."""
    options = resolve(dict(stage.options), place.outputs)
    function = find_function(str(stage.call), options)
    shutil.rmtree(place.work, ignore_errors=True)
    place.work.mkdir(parents=True)
    result = function(place.work, **options)
    os.replace(place.work, place.output)
    return dict(result) if isinstance(result, Mapping) else {}
