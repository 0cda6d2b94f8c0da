"""Rewards of another package."""
