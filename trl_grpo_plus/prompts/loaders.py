"""From a `PromptSpec` to a dataset of rows `{prompt, answer, ...}` that a trainer takes.

Stage: prompts. In: the recipe's section and the tokenizer (for its chat template). Out: a `datasets.Dataset`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from datasets import Dataset, concatenate_datasets, load_dataset, load_from_disk

from ..errors import UserError, did_you_mean
from .lengths import without_long_rows
from .spec import PromptSpec

_FORMATS = {".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet"}
_PACKED = ".gz"  # `.jsonl.gz` and the like are read as well
# Configurations of Hub datasets that have several, where the recipe names none.
_HUB_NAMES = {"openai/gsm8k": "main", "gsm8k": "main"}
# Sources whose columns have a meaning of their own: where these columns are all there, ours come from these.
_LAYOUTS: tuple[tuple[frozenset[str], dict[str, str]], ...] = (
    (frozenset({"prompt", "test", "entry_point"}), {"answer": "test"}),  # HumanEval: the answer is judged by its tests
    (frozenset({"text", "test_list"}), {"prompt": "text", "answer": "test_list"}),  # MBPP
    (frozenset({"question", "starter_code", "input_output"}), {"answer": "input_output"}),  # APPS, TACO
)
_USUAL = {
    "prompt": ("prompt", "question", "problem", "query", "instruction"),
    "answer": ("answer", "solution", "final_answer", "target", "label"),
}
_PROCEDURAL_SIZE = 1000


def load_prompts(spec: PromptSpec, tokenizer: Any = None) -> Dataset:
    """Returns the rows that a specification names, put to the model as it says.

    Args:
        spec: The specification.
        tokenizer: The model's tokenizer, asked for a chat template where `spec.chat` is `"auto"`; without one prompts
            stay plain.

    Raises:
        UserError: The source, split or a column does not exist, or a task or its package is missing.
    """
    if spec.parts:
        return join_rows([load_prompts(part, tokenizer) for part in spec.parts], [part.source for part in spec.parts])
    rows = _map_columns(read_rows(spec), spec)
    if spec.reward is not None:
        rows = rows.remove_columns([c for c in rows.column_names if c == "reward"])
        rows = rows.add_column("reward", [list(spec.reward)] * len(rows))
    chat = wants_chat(spec, tokenizer)
    prompts = [spec.put(problem, chat) for problem in rows["prompt"]]
    if rows.column_names == ["prompt"]:
        made = Dataset.from_dict({"prompt": prompts})
    else:  # not `map`, which would force the messages into the type of the source's column
        made = rows.remove_columns("prompt").add_column("prompt", prompts)
    return without_long_rows(made, spec, tokenizer)


def load_problems(spec: PromptSpec) -> list[Any]:
    """Returns the problems as their source has them, before a template is put around them: what overlaps, or not.

    Raises:
        UserError: As `load_prompts`.
    """
    if spec.parts:
        return [problem for part in spec.parts for problem in load_problems(part)]
    return list(_map_columns(read_rows(spec), spec)["prompt"])


def read_rows(spec: PromptSpec) -> Dataset:
    """Returns the rows of one source as it has them: shuffled and cut as the specification says.

    Raises:
        UserError: As `load_prompts`.
    """
    rows = _source_rows(spec)
    if spec.shuffle:
        rows = rows.shuffle(seed=spec.seed)
    if spec.size is not None and spec.size < len(rows):
        rows = rows.select(range(spec.size))
    if len(rows) == 0:
        raise UserError(f"prompts.source {spec.source} has no rows in the split {spec.split}")
    return rows


def wants_chat(spec: PromptSpec, tokenizer: Any) -> bool:
    """Returns whether prompts become chat messages.

    Raises:
        UserError: The specification says so and the tokenizer has no chat template.
    """
    template = getattr(tokenizer, "chat_template", None)
    if spec.chat != "auto" and spec.chat and tokenizer is not None and not template:
        raise UserError("prompts.chat is true, but the model's tokenizer has no chat template; set it to false")
    return bool(template) if spec.chat == "auto" else bool(spec.chat)


def join_rows(parts: Sequence[Dataset], sources: Sequence[str]) -> Dataset:
    """Returns the rows of several sources one after the other; a column that one lacks is `None` in its rows.

    Where one source has texts as answers and another has tests or numbers, these become JSON texts.

    Args:
        parts: The rows of each source.
        sources: Their names, for the message.

    Raises:
        UserError: A column holds different types of values in two of them.
    """
    kinds = {str(part.features["answer"]) for part in parts if "answer" in part.column_names}
    if len(kinds) > 1:
        parts = [_with_text_answers(part) for part in parts]
    first: dict[str, int] = {}
    for i, part in enumerate(parts):
        for column, kind in part.features.items():
            known = first.setdefault(column, i)
            if parts[known].features[column] != kind:
                raise UserError(
                    f"prompts: the column `{column}` of {sources[i]} is not of the type that it has in "
                    f"{sources[known]} ({kind} and {parts[known].features[column]}): they cannot be mixed"
                )
    return concatenate_datasets(list(parts))


def _with_text_answers(rows: Dataset) -> Dataset:
    if "answer" not in rows.column_names:
        return rows
    texts = [each if isinstance(each, str) else json.dumps(each, ensure_ascii=False) for each in rows["answer"]]
    return rows.remove_columns("answer").add_column("answer", texts)


def _source_rows(spec: PromptSpec) -> Dataset:
    if spec.source == "arithmetic":
        return _arithmetic_rows(spec)
    if spec.source.startswith("reasoning_gym:"):
        from .reasoning_gym import reasoning_gym_rows

        name, _, arguments = spec.source.partition(":")[2].partition(":")
        return reasoning_gym_rows(
            name,
            split=spec.split,
            size=spec.size or _PROCEDURAL_SIZE,
            seed=spec.seed,
            options={**_arguments(arguments), **spec.options},
        )
    if spec.options:
        raise UserError(f"prompts.options is for procedural tasks; the source {spec.source} takes none")
    path = Path(spec.source)
    if (path / "dataset_info.json").exists() or (path / "dataset_dict.json").exists():
        return _saved_rows(path, spec.split)
    if path.is_dir():
        path = _split_file(path, spec.split)
    suffix = _suffix(path)
    if suffix in _FORMATS:
        if not path.is_file():
            raise UserError(f"prompts.source: no such file: {path}")
        try:
            return load_dataset(_FORMATS[suffix], data_files=str(path), split="train")
        except Exception as error:  # `datasets` raises errors of many kinds for files it cannot read
            cause = error.__cause__ or error
            raise UserError(f"prompts.source: {path} cannot be read as {suffix[1:]}: {cause}") from error
    if path.exists():
        raise UserError(f"prompts.source: {path} is none of {', '.join(_FORMATS)}")
    return _hub_rows(spec)


def _arithmetic_rows(spec: PromptSpec) -> Dataset:
    from .arithmetic import arithmetic

    split: Any = spec.split
    try:
        rows = arithmetic(split=split, size=spec.size or _PROCEDURAL_SIZE, seed=spec.seed, **spec.options)
    except (TypeError, ValueError) as error:
        raise UserError(f"prompts: arithmetic: {error}") from error
    texts = [messages[0]["content"] for messages in rows["prompt"]]  # whether they become chat is the recipe's to say
    return rows.remove_columns("prompt").add_column("prompt", texts)


def _arguments(text: str) -> dict[str, Any]:
    """Returns the options in `min_terms=2,max_terms=3`, each value read as YAML.

    Raises:
        UserError: A part has another form.
    """
    found = {}
    for part in text.split(",") if text else ():
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise UserError(
                f"prompts.source: write a task's arguments as reasoning_gym:<name>:<key>=<value>,..., found `{part}`"
            )
        found[key.strip()] = yaml.safe_load(value)
    return found


def _suffix(path: Path) -> str:
    return Path(path.stem).suffix if path.suffix == _PACKED else path.suffix


def _saved_rows(directory: Path, split: str) -> Dataset:
    """Returns the rows of what `datasets` saved with `save_to_disk`."""
    saved = load_from_disk(str(directory))
    if isinstance(saved, Dataset):
        return saved
    if split not in saved:
        raise UserError(f"prompts.split: no split `{split}` in {directory}; it holds {', '.join(saved)}")
    return saved[split]


def _split_file(directory: Path, split: str) -> Path:
    files = sorted(p for p in directory.iterdir() if _suffix(p) in _FORMATS)
    for file in files:
        if file.name.removesuffix(_PACKED).removesuffix(_suffix(file)) == split:
            return file
    found = ", ".join(file.name for file in files) or f"no {'/'.join(_FORMATS)} file"
    raise UserError(f"prompts.split: no file for the split `{split}` in {directory}; it holds {found}")


def _hub_rows(spec: PromptSpec) -> Dataset:
    try:
        rows = load_dataset(spec.source, name=spec.name or _HUB_NAMES.get(spec.source), split=spec.split)
    except Exception as error:  # the Hub's client raises many kinds: no network, no such dataset, split or name
        raise UserError(
            f"prompts.source: {spec.source} is no file, no directory and no procedural task (arithmetic, "
            f"reasoning_gym:<name>), and loading it from the Hub (name {spec.name}, split {spec.split}) failed: "
            f"{type(error).__name__}: {error}"
        ) from error
    return rows


def _map_columns(rows: Dataset, spec: PromptSpec) -> Dataset:
    """Returns the rows with our columns beside the source's.

    Raises:
        UserError: As `load_prompts`.
    """
    layout = next((ours for columns, ours in _LAYOUTS if columns <= set(rows.column_names)), {})
    for ours, usual in _USUAL.items():
        theirs = spec.columns.get(ours, layout.get(ours))
        if theirs is None:
            theirs = next((name for name in usual if name in rows.column_names), None)
            if theirs is None and ours == "answer":
                continue  # whether an answer is needed is for the rewards to say
        if theirs is None or theirs not in rows.column_names:
            wanted = f"`{theirs}`" if theirs else f"any of {', '.join(usual)}"
            raise UserError(
                f"prompts.columns: {spec.source} has no column {wanted} for `{ours}`"
                f"{did_you_mean(theirs or ours, rows.column_names)}; its columns: {', '.join(rows.column_names)}. "
                f"Write `columns: {{{ours}: <one of these>}}`"
            )
        if theirs != ours:
            if ours in rows.column_names:
                rows = rows.remove_columns(ours)
            rows = rows.add_column(ours, rows[theirs])  # theirs stays: a reward of the user's own may read it
        if ours == "prompt" and theirs == "question" and "input_output" in layout.values():
            prompts = list(map(_with_call_form, rows["question"], rows["starter_code"], rows["input_output"]))
            rows = rows.remove_columns("prompt").add_column("prompt", prompts)
    return rows


def _with_call_form(question: str, starter_code: str | None, tests: str | None) -> str:
    """Returns a problem of APPS or TACO with how its solution is called, which stands in other columns.

    Without it, nobody could know the name that the tests call, nor whether there is one.
    """
    if '"fn_name"' not in (tests or ""):
        form = "The program reads from standard input and prints to standard output."
    elif (starter_code or "").strip():
        form = "Go on from this code, which the tests call:"
    else:
        form = f"The tests call the function `{json.loads(tests or '').get('fn_name')}`."
    given = f"\n\n```python\n{starter_code.strip()}\n```" if starter_code and starter_code.strip() else ""
    return f"{question.strip()}\n\n{form}{given}"
