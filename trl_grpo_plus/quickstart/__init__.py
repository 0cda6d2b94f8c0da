"""The quickstart: a tiny model, cold-started by SFT on arithmetic, and what GRPO with verifiable rewards adds."""
