r"""`PromptSpec`: the `prompts:` section of a recipe, checked, and the templates that can be named in it.

Stage: prompts. A row that leaves this stage has `prompt` (a text, or chat messages), the gold `answer` where the task
has one, and the other columns of its source.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import UserError, did_you_mean

# Our names of columns, which `columns` can map to a source's: of prompts, of demonstrations and of preferences.
COLUMNS = ("prompt", "answer", "completion", "messages", "chosen", "rejected")
# Named templates: what is put to the model instead of the bare problem. `{prompt}` is the problem.
TEMPLATES: dict[str, str] = {
    "none": "{prompt}",
    "think_answer": (
        "{prompt}\n\nFirst think step by step inside <think> and </think>. Then give only the final answer inside "
        "<answer> and </answer>."
    ),
    "boxed": "{prompt}\n\nPlease reason step by step, and put your final answer within \\boxed{}.",
    "python": (
        "Complete the following Python function. Answer with the whole function in one ```python block.\n\n"
        "```python\n{prompt}\n```"
    ),
    "gsm8k": "{prompt}\n\nThink step by step. End with the final number on a line of its own: #### <number>",
    "think_code": (
        "{prompt}\n\nFirst think step by step inside <think> and </think>. Then give the whole program in one "
        "```python block."
    ),
    # DeepSeek-R1-Zero's (arXiv 2501.12948v1, table 1), for a base model: with `chat: false`.
    "r1_zero": (
        "A conversation between User and Assistant. The user asks a question, and the Assistant solves it. The "
        "assistant first thinks about the reasoning process in the mind and then provides the user with the answer. "
        "The reasoning process and answer are enclosed within <think> </think> and <answer> </answer> tags, "
        "respectively, i.e., <think> reasoning process here </think> <answer> answer here </answer>. User: {prompt}. "
        "Assistant:"
    ),
}


@dataclass(frozen=True)
class PromptSpec:
    """Where prompts come from and how they are put to the model.

    Args:
        source: `arithmetic`; `reasoning_gym:<name>`, or `reasoning_gym:<name>:<key>=<value>,...`; a `.jsonl`, `.json`,
            `.csv` or `.parquet` file, packed by gzip or not; a directory with a file per split (`train.jsonl`,
            `test.jsonl`), or one that `datasets` saved; else the id of a dataset on the Hub.
        name: Configuration of a Hub dataset (`main` for `openai/gsm8k`).
        split: Split of the source; procedural tasks know `train`, `validation` and `test`, disjoint by content.
        columns: Our column -> the source's, for `COLUMNS`; all of the source's columns stay as well.
            Where it says nothing, usual names are looked for.
        system: System message; for plain prompts it is put before the prompt, and an empty line.
        template: A name of `TEMPLATES`, or a text with `{prompt}` in it.
        chat: Whether prompts become chat messages; `"auto"` does so where the tokenizer has a chat template.
        size: Number of rows: the first ones of a file, as many as wanted of a procedural task; `None` takes all (of a
            procedural task: 1,000).
        seed: Seed of procedural tasks, and of `shuffle`.
        shuffle: Shuffle the rows of a file before `size` is cut off.
        max_tokens: Of the rows that are then there, leave out those with more tokens, of the prompt as the model reads
            it, and of demonstrations and preferences with what follows it. They are counted in a warning.
        options: Options of a procedural task, passed on.
        reward: Which of the recipe's rewards score these rows: a name or several, which become the column `reward`;
            where tasks are mixed, each row is then scored by its own. `None` leaves the column as the source has it.
        parts: Several sources in one, each with its own fields; a list in a recipe.

    Raises:
        UserError: A field's value cannot work.
    """

    source: str
    name: str | None = None
    split: str = "train"
    columns: Mapping[str, str] = field(default_factory=dict)
    system: str | None = None
    template: str = "none"
    chat: bool | str = "auto"
    size: int | None = None
    seed: int = 0
    shuffle: bool = False
    max_tokens: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    reward: str | Sequence[str] | None = None
    parts: tuple[PromptSpec, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.source, str) or not self.source:
            raise UserError(f"prompts.source must name a file, a dataset or a task, found {self.source!r}")
        if self.chat not in (True, False, "auto"):
            raise UserError(f"prompts.chat must be true, false or auto, found {self.chat!r}")
        for name in ("size", "max_tokens"):
            number = getattr(self, name)
            if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
                raise UserError(f"prompts.{name} must be a positive whole number, found {number!r}")
        names = [self.reward] if isinstance(self.reward, str) else self.reward
        if names is not None:
            if not isinstance(names, Sequence) or not names or not all(isinstance(name, str) for name in names):
                raise UserError(f"prompts.reward must be a reward's name or a list of names, found {self.reward!r}")
            object.__setattr__(self, "reward", tuple(names))
        for key in self.columns:
            if key not in COLUMNS:
                raise UserError(f"prompts.columns maps {', '.join(f'`{c}`' for c in COLUMNS)}, found `{key}`")
        if self.template not in TEMPLATES and "{prompt}" not in self.template:
            raise UserError(
                f"prompts.template must be one of {', '.join(TEMPLATES)}, or a text with {{prompt}} in it, found "
                f"{self.template!r}{did_you_mean(self.template, TEMPLATES)}"
            )

    @classmethod
    def from_config(cls, config: Any) -> PromptSpec:
        """Returns the specification of a recipe's `prompts:` section: a mapping, the source alone, or a list of such.

        Raises:
            UserError: A key is unknown or missing; the message names the closest one.
        """
        if isinstance(config, cls):
            return config
        if isinstance(config, str):
            return cls(config)
        if isinstance(config, (list, tuple)) and config:
            parts = tuple(cls.from_config(part) for part in config)
            return parts[0] if len(parts) == 1 else cls(" + ".join(part.source for part in parts), parts=parts)
        if not isinstance(config, Mapping):
            raise UserError(f"`prompts` must be a mapping with a `source`, found {config!r}")
        known = [f.name for f in dataclasses.fields(cls) if f.name != "parts"]
        for key in config:
            if key not in known:
                raise UserError(
                    f"unknown key `prompts.{key}`{did_you_mean(str(key), known)}; known: {', '.join(known)}"
                )
        if "source" not in config:
            raise UserError("`prompts` needs a `source`: a file, a dataset, `arithmetic` or `reasoning_gym:<name>`")
        return cls(**config)

    def put(self, problem: Any, chat: bool) -> Any:
        """Returns a problem as it is put to the model: a text, or messages where `chat`.

        Args:
            problem: A text, or messages, whose last user message is the problem.
            chat: Whether messages are wanted.

        Raises:
            UserError: The problem is messages and a plain prompt is wanted.
        """
        template = TEMPLATES.get(self.template, self.template)
        if not isinstance(problem, str):
            if not chat:
                raise UserError("the prompts are chat messages: set prompts.chat to true, or map another column")
            messages = [dict(message) for message in problem]
            messages[-1]["content"] = template.replace("{prompt}", str(messages[-1]["content"]))
            if self.system and messages[0].get("role") != "system":
                messages.insert(0, {"role": "system", "content": self.system})
            return messages
        text = template.replace("{prompt}", problem)
        if not chat:
            return f"{self.system}\n\n{text}" if self.system else text
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, {"role": "user", "content": text}]
