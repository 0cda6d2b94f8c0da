"""The critic of PPO: its layouts, and a trainer that trains one beside the policy."""

from .layouts import LAYOUTS, Critic, build_critic

__all__ = ["LAYOUTS", "Critic", "build_critic"]
