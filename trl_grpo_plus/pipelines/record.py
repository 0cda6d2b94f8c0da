"""`stage.json`: what a stage ran with, and whether it ended. It decides: skip, go on, start, or refuse.

A stage depends on its configuration (references unresolved, so that a run may be moved) and on the content of every
file that it names. Both are written when it starts; on the next visit they must be the same, whether it ended or not:
half a stage with one learning rate and half with another would be nobody's result.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UserError
from .fingerprint import changes

# Keys that change what is seen of a run, not what comes out of it.
WITHOUT_EFFECT = frozenset(
    {
        "output_dir",
        "logging_steps",
        "logging_first_step",
        "report_to",
        "run_name",
        "save_steps",
        "save_total_limit",
        "disable_tqdm",
        "log_completions",
        "num_completions_to_print",
        "dataloader_num_workers",
    }
)


@dataclass(frozen=True)
class Dependencies:
    """What a stage's result depends on.

    Args:
        config: Its configuration, references unresolved, without the keys that have no effect.
        inputs: Path as the configuration has it -> hash of its content.
    """

    config: Mapping[str, Any]
    inputs: Mapping[str, str]


@dataclass(frozen=True)
class Record:
    """A stage's record.

    Args:
        state: `started` or `done`.
        dependencies: What it ran with.
        result: What it found, as JSON values.
    """

    state: str
    dependencies: Dependencies
    result: Mapping[str, Any] = field(default_factory=dict)


def read_record(directory: Path) -> Record | None:
    """Returns the record of a stage's directory, or `None`."""
    file = directory / "stage.json"
    if not file.exists():
        return None
    stored = json.loads(file.read_text())
    return Record(stored["state"], Dependencies(**stored["dependencies"]), stored["result"])


def write_record(directory: Path, record: Record) -> None:
    """Writes a stage's record; it is whole or the one before, whenever the process is killed."""
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / "stage.json", asdict(record))


def write_json(file: Path, value: Any) -> None:
    """Writes JSON under a name at once."""
    part = file.with_suffix(".tmp")
    part.write_text(json.dumps(value, indent=2) + "\n")
    os.replace(part, file)


def check_unchanged(name: str, record: Record, now: Dependencies) -> None:
    """Raises where a stage depends on something else than when it ran.

    Args:
        name: The stage.
        record: Its record.
        now: What it would depend on now.

    Raises:
        UserError: It does; the message says what differs, and how to go on.
    """
    stored = json.loads(json.dumps(asdict(now)))
    found = changes(record.dependencies.config, stored["config"])
    for path, digest in stored["inputs"].items():
        if path in record.dependencies.inputs and record.dependencies.inputs[path] != digest:
            found.append(f"the content of {path} is another")
    if not found:
        return
    did = "was done" if record.state == "done" else "was begun"
    raise UserError(
        f"stage `{name}` {did} with another configuration ({'; '.join(found[:5])}"
        f"{f'; and {len(found) - 5} more' if len(found) > 5 else ''}). Do it and what follows from it again with "
        f"--redo {name}, or keep it and choose another --output_dir"
    )
