"""Functions that the tests' pipelines call."""

import json
from pathlib import Path


def make(output: Path, n: int = 1) -> dict:
    """Writes `n` problems that all have the same answer, as prompts and as demonstrations."""
    rows = [{"prompt": f"{i}?", "answer": "1", "completion": "<answer>1</answer>"} for i in range(n)]
    (output / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"rows": n}
