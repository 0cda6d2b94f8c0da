"""Pipelines: several recipes in a row, each stage resumable, skipped when done, and evaluated before and after."""
