"""GRPO on one GPU, as a drop-in for Hugging Face TRL: `from trl_grpo_plus import GRPOConfig, GRPOTrainer`."""

__version__ = "0.1.0"
