"""Rows of the shapes that the recipes' data sets have on the Hub, and a stand-in for it that serves them.

Columns, configurations and splits are those of the data sets' cards, or of public code that reads them where no card
was at hand (TACO-verified); the problems are ours.
"""

import json

from datasets import Dataset

from trl_grpo_plus.prompts import loaders

USER = {"content": "What is 1+2?", "role": "user"}
ANSWER = {"content": "<think>\nEasy.\n</think>\n\n3", "role": "assistant"}
MATH = {
    "problem": "What is $1+2$?", "solution": r"It is $\boxed{3}$.", "answer": "3", "subject": "Algebra", "level": 1,
    "unique_id": "train/algebra/1.json",
}  # fmt: skip


def taco(source, solution, tests, starter_code=""):
    """A row as TACO-verified has it: `input_output` is a JSON text, `solutions` a list of texts."""
    return {
        "id": 7, "question": f"A problem of {source}.\n", "solutions": [solution], "starter_code": starter_code,
        "input_output": json.dumps(tests), "difficulty": "EASY", "raw_tags": "['math']", "name": None,
        "source": source, "tags": "['Mathematics']", "skill_types": "[]", "url": f"https://{source}.com/1",
        "Expected Auxiliary Space": None, "time_limit": "1.0 seconds", "date": "2020-01-01", "picture_num": "0",
        "memory_limit": "256.0 megabytes", "Expected Time Complexity": None,
    }  # fmt: skip


STDIN = {"inputs": ["2\n1 2\n", "1\n5\n"], "outputs": ["3\n", "5\n"]}
SUM = "input()\nprint(sum(map(int, input().split())))"
TACO = {
    "texts": taco("codeforces", SUM, STDIN),
    "lines": taco("codechef", SUM, {"inputs": [["2", "1 2"], ["1", "5", ""]], "outputs": [["3"], ["5", ""]]}),
    # Results in lists of one, a tuple and a float among them, and keys that JSON made texts of.
    "wrapped": taco(
        "codewars",
        "def f(a, d):\n    return (a / 3, d[a])",
        {"fn_name": "f", "inputs": [[1, {"1": 4}], [2, {"2": 5}]], "outputs": [[[1 / 3, 4]], [[0.66666666667, 5]]]},
        "def f(a, d):\n\t",
    ),
    # Results as they are, one of them a list of one, of a method; `List` comes from nowhere.
    "method": taco(
        "leetcode",
        "class Solution:\n    def firstTwo(self, nums: List[int]) -> List[int]:\n        return nums[:2]",
        {"fn_name": "firstTwo", "inputs": [[[1, 2, 3]], [[4]]], "outputs": [[1, 2], [4]]},
        "class Solution:\n    def firstTwo(self, nums: List[int]) -> List[int]:\n        ",
    ),
}
# id -> (configuration that must be asked for, splits, rows)
PUBLISHED = {
    "openai/gsm8k": ("main", ("train", "test"), [{"question": "1+2?", "answer": "1+2=<<1+2=3>>3\n#### 3"}]),
    "nlile/hendrycks-MATH-benchmark": (None, ("train", "test"), [MATH]),
    "HuggingFaceH4/MATH-500": (None, ("test",), [MATH]),
    "likaixin/TACO-verified": (None, ("train",), list(TACO.values())),
    "openai/openai_humaneval": (
        None,
        ("test",),
        [{"task_id": "HumanEval/0", "prompt": "def add(a, b):\n", "canonical_solution": "    return a + b\n",
          "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n", "entry_point": "add"}],
    ),
    "open-r1/OpenR1-Math-220k": (
        "default",
        ("train",),
        [{"problem": USER["content"], "solution": "## Solution.\n\nBy hand.", "answer": "3", "problem_type": "Algebra",
          "question_type": "math-word-problem", "source": "olympiads", "uuid": "586fd646",
          "is_reasoning_complete": [True, True], "generations": [ANSWER["content"], "<think>\nHm."],
          "correctness_math_verify": [True, False], "correctness_llama": None, "finish_reasons": None,
          "correctness_count": 1, "messages": [USER, ANSWER]}],
    ),
    "HuggingFaceTB/smoltalk": (
        "all",
        ("train", "test"),
        [{"messages": [{"content": "Be brief.", "role": "system"}, USER, ANSWER], "source": "systemchats-30k"},
         {"messages": [USER, ANSWER, USER, ANSWER], "source": "everyday-conversations"}],
    ),
}  # fmt: skip


def serve(monkeypatch):
    """Puts the rows in the Hub's place; asking for a configuration or a split that is not there fails."""
    from_files = loaders.load_dataset

    def load_dataset(path, name=None, split=None, **options):
        if "data_files" in options:
            return from_files(path, name=name, split=split, **options)
        configuration, splits, rows = PUBLISHED[path]
        assert name == configuration and split in splits, (path, name, split)
        return Dataset.from_list(rows)

    monkeypatch.setattr(loaders, "load_dataset", load_dataset)
