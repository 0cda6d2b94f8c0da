"""`grpo-plus eval`: evaluates a model on held-out problems, or compares two evaluations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperCommand

from ..errors import UserError

_SEVERAL = ("--k", "--rewards", "--train_data", "--train-data")


class SeveralValues(TyperCommand):
    """A command some of whose options take several values, as in `--k 1 8 64`."""

    def parse_args(self, context: Any, args: list[str]) -> list[str]:
        """Repeats the option before each of its values, which is what click understands."""
        spread: list[str] = []
        option: str | None = None
        for word in args:
            if word.startswith("--"):
                option = word if word in _SEVERAL else None
            elif option is not None and spread[-1] != option:
                spread.append(option)
            spread.append(word)
        return super().parse_args(context, spread)


def eval_command(
    model: Annotated[str | None, typer.Option(help="Directory or id of a model, or of a LoRA adapter.")] = None,
    data: Annotated[
        str | None, typer.Option(help="A file, a directory of splits, the Hub, or reasoning_gym:<name>:<key>=<value>.")
    ] = None,
    rewards: Annotated[
        list[str] | None, typer.Option(help="Rewards by name, as in a recipe; the first accuracy decides.")
    ] = None,
    n: Annotated[int, typer.Option("--n", help="Samples per problem.")] = 1,
    k: Annotated[list[int] | None, typer.Option("--k", help="Sizes k of pass@k and maj@k, up to n.")] = None,
    name: Annotated[str | None, typer.Option(help="Configuration of a Hub dataset.")] = None,
    split: Annotated[str, typer.Option(help="Split of the data.")] = "test",
    size: Annotated[int | None, typer.Option(help="Only the first so many problems.")] = None,
    columns: Annotated[str | None, typer.Option(help="As YAML: '{prompt: question, answer: gold}'.")] = None,
    options: Annotated[str | None, typer.Option(help="Options of a procedural task, as YAML.")] = None,
    template: Annotated[str, typer.Option(help="none, think_answer, boxed, gsm8k, or a text with {prompt}.")] = "none",
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    chat: Annotated[str, typer.Option(help="Prompts as chat messages: auto, true or false.")] = "auto",
    max_new_tokens: Annotated[
        int, typer.Option("--max_new_tokens", "--max-new-tokens", help="Longest completion.")
    ] = 512,
    temperature: Annotated[float, typer.Option(help="Of the softmax; 0 is greedy.")] = 1.0,
    top_p: Annotated[float, typer.Option("--top_p", "--top-p", help="Nucleus.")] = 1.0,
    top_k: Annotated[int, typer.Option("--top_k", "--top-k", help="Tokens kept; 0 keeps all.")] = 0,
    greedy: Annotated[bool, typer.Option("--greedy", help="The same as --temperature 0.")] = False,
    seed: Annotated[int, typer.Option(help="Fixes the samples.")] = 0,
    batch_size: Annotated[int, typer.Option("--batch_size", "--batch-size", help="Samples drawn at once.")] = 64,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    correct: Annotated[str | None, typer.Option(help="Reward that says what is right.")] = None,
    train_data: Annotated[
        list[str] | None,
        typer.Option("--train_data", "--train-data", help="Training data (split train): overlaps are reported."),
    ] = None,
    output_dir: Annotated[
        str | None, typer.Option("--output_dir", "--output-dir", help="Where samples and numbers go; goes on there.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an evaluation with other settings.")] = False,
    compare: Annotated[
        tuple[str, str] | None, typer.Option(help="Compare two finished evaluations instead: RUN_A RUN_B.")
    ] = None,
) -> None:
    """Evaluate a model: pass@k, maj@k, rewards and length with intervals; or --compare two evaluations."""
    if compare is not None:
        _compare(compare, k)
        return
    for option, value in (("--model", model), ("--data", data), ("--rewards", rewards)):
        if not value:
            raise UserError(f"{option} is missing: grpo-plus eval --model M --data D --rewards R, or --compare A B")
    from .._quiet import quiet

    quiet()
    from ..prompts import PromptSpec
    from ..report import environment
    from .run import evaluate
    from .sampling import Sampling
    from .show import DrawingProgress, print_result

    assert model is not None and data is not None and rewards is not None
    spec = PromptSpec(
        source=data,
        name=name,
        split=split,
        size=size,
        columns=_yaml("--columns", columns) or {},
        options=_yaml("--options", options) or {},
        template=template,
        system=system,
        chat=chat if chat == "auto" else _yaml("--chat", chat),
    )
    sampling = Sampling(
        n=n,
        max_new_tokens=max_new_tokens,
        temperature=0.0 if greedy else temperature,
        top_p=top_p,
        top_k=top_k,
        seed=seed,
        batch_size=batch_size,
    )
    overlap = _overlap(spec, train_data, name)
    output = output_dir or f"runs/eval/{_short(model)}_{_short(data)}{'_greedy' if sampling.greedy else ''}"
    console = Console()
    with DrawingProgress(console) as progress:
        result = evaluate(
            model,
            spec,
            _rewards(rewards),
            sampling=sampling,
            ks=k or (1,),
            correct=correct,
            output_dir=output,
            overwrite=overwrite,
            dtype=dtype,
            on_batch=progress,
            details={
                "data": {"source": data, "split": split, "template": template},
                **({} if overlap is None else {"overlap": overlap}),
                "environment": environment(),
            },
        )
    print_result(console, result)
    if overlap is not None:
        console.print(overlap["found"], highlight=False, soft_wrap=True)
    console.print(f"samples, verdicts and numbers are in {output}/", highlight=False, soft_wrap=True)


def _compare(runs: tuple[str, str], ks: list[int] | None) -> None:
    from .comparison import compare
    from .show import print_comparison

    print_comparison(Console(), compare(*runs, ks=ks or None), *runs)


def _overlap(spec: Any, train_data: list[str] | None, name: str | None) -> dict[str, Any] | None:
    """Returns what the training data and the problems have in common, for the record, or `None` where not asked."""
    from ..prompts import PromptSpec, find_overlap, load_problems

    if not train_data:
        return None
    problems = [p for source in train_data for p in load_problems(PromptSpec(source, name=name, split="train"))]
    found = find_overlap(problems, load_problems(spec))
    return {"train_data": train_data, "exact": len(found.exact), "near": len(found.near), "found": found.describe()}


def _short(name: str) -> str:
    """Returns a name for a directory: the last part of a path, without what is no letter, digit, dot or dash."""
    last = Path(name.rstrip("/")).name or name
    return "".join(c if c.isalnum() or c in ".-" else "_" for c in last)


def _yaml(option: str, text: str | None) -> Any:
    import yaml

    if text is None:
        return None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"{option} is not valid YAML: {text!r}") from error


def _rewards(texts: list[str]) -> list[Any]:
    """Returns the rewards of a command line: names, or YAML of one or several as in a recipe."""
    found: list[Any] = []
    for text in texts:
        value = text if ":" in text and "{" not in text and " " not in text else _yaml("--rewards", text)
        found += value if isinstance(value, list) else [value]
    return found
