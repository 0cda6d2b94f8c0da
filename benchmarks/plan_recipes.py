"""Writes what each recipe for a GPU is planned to need into its header, after `# Memory planned:`.

A plan is arithmetic (`grpo-plus plan`), not a measurement. Prompts are as long as the longest of their data.

    python benchmarks/plan_recipes.py            # rewrites recipes/*.yaml
"""

import re
from pathlib import Path

from trl_grpo_plus.memory.devices import GIB
from trl_grpo_plus.pipelines.spec import load_pipeline
from trl_grpo_plus.recipe_plan import load_for_planning, plan_recipe

ROOT = Path(__file__).parents[1]
# Longest prompts with their template, in tokens, rounded up. MATH and TACO have a few that are longer.
PROMPT_TOKENS = {"openai/gsm8k": 320, "nlile/hendrycks-MATH-benchmark": 768, "likaixin/TACO-verified": 1024}
CARDS_GIB = (8, 12, 16, 24, 32, 48, 80, 141)
_USABLE = 0.95  # of a card: what its display and driver leave
_LINE = re.compile(r"^# Memory planned:.*\n(?:#   .*\n)*", re.MULTILINE)


def note(path: Path) -> str:
    """Returns the lines of a recipe's header on memory."""
    recipe = load_for_planning(path)
    if recipe.algorithm in ("sft", "reward_model"):
        longest, lengths = 0, f"rows of {recipe.args.max_length} tokens"
    else:
        longest = max(PROMPT_TOKENS[part.source] for part in (recipe.prompts.parts or (recipe.prompts,)))
        lengths = f"prompts of {longest} tokens, longest completions"
    model = str(recipe.model.model_name_or_path)
    if model.startswith("${"):  # what an earlier stage made: of the shape that its pipeline starts from
        first = next(stage for stage in load_pipeline(path.parent / "pipeline.yaml").stages if not stage.call)
        model = str(first.keys["model_name_or_path"])
    made = plan_recipe(recipe, longest, model)
    card = next((gib for gib in CARDS_GIB if _USABLE * gib * GIB >= made.needed), None)
    fits = f"fits a card of {card} GB" if card else "more than one card has"
    return (
        f"# Memory planned: {made.needed / GIB:.1f} GiB, {fits}; most in the {made.limiting_phase.value} phase.\n"
        f"#   (benchmarks/plan_recipes.py: {lengths}; not measured)\n"
    )


def render(path: Path) -> str:
    """Returns a recipe's file with its header's note written anew."""
    return _LINE.sub(lambda _: note(path), path.read_text())


def planned() -> list[Path]:
    """Returns the recipes whose header has a note."""
    return [path for path in sorted((ROOT / "recipes").rglob("*.yaml")) if "# Memory planned:" in path.read_text()]


if __name__ == "__main__":
    for path in planned():
        path.write_text(render(path))
        print(f"{path.relative_to(ROOT)}: {note(path).splitlines()[0]}")
