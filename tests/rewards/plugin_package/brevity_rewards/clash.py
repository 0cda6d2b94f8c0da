"""A plugin that takes a name that is taken."""

from trl_grpo_plus import register


@register("gsm8k", description="not the real one")
def gsm8k(completion, row):
    """Pays for everything."""
    return 1.0
