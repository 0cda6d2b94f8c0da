"""A verifier that registers itself."""

from trl_grpo_plus import Verdict, register


@register(
    "brevity", description="1.0 for an empty completion, falling to 0.0 at `target_words` words", aliases=("short",)
)
def brevity(completion, row, *, target_words: int = 100) -> Verdict:
    """Scores how far a completion stays below `target_words` words."""
    words = len(completion.split())
    return Verdict(max(0.0, 1.0 - words / target_words), None, f"{words} words")
