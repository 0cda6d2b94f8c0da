"""The directory of an evaluation: batches as they are drawn, then all samples with their verdicts, as parquet.

    sampling.json      what the samples depend on: model, prompts, settings; other ones are not mixed with them
    parts/*.parquet    the batches of a run that is not finished
    samples.parquet    a row per sample: problem, number, completion, ids, truncated, batch; reward, value, right,
                       answer, vote; and rewards/<name>, rewards/<name>/answer, rewards/<name>/reason for each reward
    problems.parquet   a row per problem: the prompt as put to the model, and the source's columns
    result.json        the numbers

A file appears under its name only when it is whole: a kill at any time leaves nothing half-written.
"""

from __future__ import annotations

import json
import os
import shutil
from array import array
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from .sampling import Sample

if TYPE_CHECKING:
    from .scoring import Scored

_SETTINGS, _PARTS, _SAMPLES, _PROBLEMS, _RESULT = (
    "sampling.json",
    "parts",
    "samples.parquet",
    "problems.parquet",
    "result.json",
)


class RunDirectory:
    """Keeps the samples of one evaluation.

    Args:
        directory: The directory; created where missing.
        settings: JSON values that the samples depend on.
        overwrite: Drop samples that depend on other settings instead of refusing.

    Raises:
        UserError: The directory holds samples that depend on other settings, or something else than an evaluation.
    """

    def __init__(self, directory: str | Path, settings: Mapping[str, Any], overwrite: bool = False) -> None:
        self.directory = Path(directory)
        file = self.directory / _SETTINGS
        if self.directory.exists() and not file.exists() and any(self.directory.iterdir()):
            raise UserError(f"output_dir: {self.directory} holds something else than an evaluation; choose another")
        wanted = json.loads(json.dumps(settings))
        if file.exists():
            found = json.loads(file.read_text())
            if found != wanted:
                if not overwrite:
                    raise UserError(
                        f"output_dir: {self.directory} holds an evaluation with other settings ("
                        f"{'; '.join(_differences(found, wanted))}). Choose another output_dir, or replace it with "
                        f"overwrite"
                    )
                self._clear()
        (self.directory / _PARTS).mkdir(parents=True, exist_ok=True)
        _write_text(file, json.dumps(wanted, indent=2) + "\n")

    def _clear(self) -> None:
        shutil.rmtree(self.directory / _PARTS, ignore_errors=True)
        for name in (_SETTINGS, _SAMPLES, _PROBLEMS, _RESULT):
            (self.directory / name).unlink(missing_ok=True)

    def read(self) -> dict[int, list[Sample]]:
        """Returns the samples of each batch that is there."""
        import pyarrow.parquet

        samples = self.directory / _SAMPLES
        if samples.exists():
            drawn = pyarrow.parquet.read_table(samples, columns=[*_COLUMNS, "batch"]).to_pylist()
            batches: dict[int, list[Sample]] = {}
            for row in drawn:
                batches.setdefault(row.pop("batch"), []).append(_sample(row))
            return batches
        files = (self.directory / _PARTS).glob("*.parquet")
        return {int(f.stem): [_sample(row) for row in pyarrow.parquet.read_table(f).to_pylist()] for f in files}

    def write(self, batch: int, samples: Sequence[Sample]) -> None:
        """Keeps the samples of a batch."""
        _write_table(self.directory / _PARTS / f"{batch:06d}.parquet", (_row(s) for s in samples))

    def finish(self, scored: Sequence[Scored], problems: Iterable[Mapping[str, Any]], result: str) -> None:
        """Writes what a finished evaluation leaves, and removes the batches.

        Args:
            scored: All samples with their verdicts.
            problems: The rows of the problems.
            result: The numbers, as JSON.
        """
        batch_of = {(s.problem, s.number): b for b, samples in self.read().items() for s in samples}
        rows = []
        for each in scored:
            row = {**_row(each.sample), "batch": batch_of[each.sample.problem, each.sample.number]}
            row |= {
                "reward": each.reward,
                "value": each.value,
                "right": each.right,
                "answer": each.answer,
                "vote": each.vote,
            }
            for name, verdict in each.verdicts.items():
                column = f"rewards/{name}"
                row |= {column: verdict.value, f"{column}/answer": verdict.answer, f"{column}/reason": verdict.reason}
            rows.append(row)
        _write_table(self.directory / _PROBLEMS, ({k: _plain(v) for k, v in row.items()} for row in problems))
        _write_table(self.directory / _SAMPLES, rows)
        _write_text(self.directory / _RESULT, result)
        shutil.rmtree(self.directory / _PARTS)


_COLUMNS = ("problem", "number", "completion", "ids", "truncated")


def _row(sample: Sample) -> dict[str, Any]:
    values = (sample.problem, sample.number, sample.text, list(sample.ids), sample.truncated)
    return dict(zip(_COLUMNS, values, strict=True))


def _sample(row: Mapping[str, Any]) -> Sample:
    return Sample(row["problem"], row["number"], row["completion"], array("i", row["ids"]), row["truncated"])


def _plain(value: Any) -> Any:
    """Returns what every row of a column can hold: numbers and texts as they are, the rest as JSON."""
    simple = value is None or isinstance(value, (str, int, float, bool))
    return value if simple else json.dumps(value, ensure_ascii=False, default=str)


def _write_table(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    import pyarrow
    import pyarrow.parquet

    part = path.with_suffix(".tmp")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([dict(row) for row in rows]), part)
    os.replace(part, path)


def _write_text(path: Path, text: str) -> None:
    part = path.with_suffix(".tmp")
    part.write_text(text)
    os.replace(part, path)


def read_run(directory: str | Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns the rows of the problems and of the samples of a finished evaluation.

    Raises:
        UserError: It is no directory of a finished evaluation.
    """
    import pyarrow.parquet

    directory = Path(directory)
    for name in (_PROBLEMS, _SAMPLES):
        if not (directory / name).exists():
            parts = directory / _PARTS
            hint = ", which is not finished: run it again, it goes on" if parts.exists() else ""
            raise UserError(f"{directory} is no finished evaluation: it has no {name}{hint}")
    problems, samples = (pyarrow.parquet.read_table(directory / name).to_pylist() for name in (_PROBLEMS, _SAMPLES))
    return problems, samples


def _differences(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    keys = [k for k in [*found, *(k for k in wanted if k not in found)] if found.get(k) != wanted.get(k)]
    return [f"{k}: {found.get(k)!r} there, {wanted.get(k)!r} now" for k in keys]
