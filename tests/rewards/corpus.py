"""Cases of `tests/data/reward_cases.jsonl` as calls: (verifier, its options, completion, row)."""

VERIFIERS = {
    "math": "math",
    "numeric": "gsm8k",
    "choice": "multiple_choice",
    "format": "think_format",
    "json": "json_schema",
    "length": "length",
    "repetition": "repetition",
}


def call_of(case):
    """Returns (name, options, completion, row) of a case of any kind but `code`."""
    kind, gold = case["kind"], case["gold"]
    name, options, row = VERIFIERS[kind], {}, {"prompt": case.get("prompt", "p"), "answer": gold}
    if kind == "choice":
        row["choices"] = case.get("option_texts") or case["choices"]
    elif kind == "format":
        options = {"answer_tag": gold["spec"] == "think_answer", "opened": gold.get("prefilled", False)}
    elif kind == "json":
        row["schema"] = gold["schema"] if "schema" in gold else {"const": gold["value"]}
    elif kind == "length":
        row["completion_ids"] = [0] * gold["n_tokens"]
        options = {"max_tokens": gold["max_len"]}
        if gold["rule"] == "soft_overlong":
            options["cache_tokens"] = gold["cache"]
        else:
            options |= {"rule": "cosine", "correct": gold["correct"], "wrong": gold["wrong"]}
            row["correct"] = gold["correct_answer"]
    elif kind == "repetition":
        row["completion_ids"] = gold["completion_ids"]
        options = {"ngram": gold["ngram"], "max_penalty": gold["max_penalty"]}
    return name, options, case["completion"], row
