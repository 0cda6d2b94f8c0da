"""Which program a completion states."""

# ruff: noqa: E501  (completions as texts)

import pytest

from trl_grpo_plus.rewards.program import extract, prompt_code

F = "def f(x):\n    return x + 1"
BAD = "def f(x):\n    return x"
USE = "print(f(1))"
LOOP = "def f(x):\n    for _ in range(1):\n        x += 1\n        return x"

STATED = [
    (F, F),
    (f"```python\n{F}\n```", F),
    (f"```py\n{F}\n```\nIt adds one.", F),
    (f"```Python3\n{F}\n```", F),
    (f"```\n{F}\n```", F),
    (f"```text\n{F}\n```", F),
    (f"```python3.11\n{F}\n```", F),
    (f"```cpp\n{F}\n```", None),
    (f"```python\n\ufeff{F}\n```", F),
    ("    " + F.replace("\n", "\n    "), F),
    (f"~~~\n{F}\n~~~", F),
    (f"````python\n{F}\n````", F),
    (f"```python title=\"f.py\"\n{F}\n```", F),
    (f"``` python\n{F}\n```", F),
    (f"```{{.python}}\n{F}\n```", F),
    (f"```python\n{F}", F),
    (f"{F}\n```", F),
    (f"{F}\n```\nThis adds one.", F),
    (f"```python\n{F}\n```\nUse it:\n```python\n{USE}\n```", F),
    (f"```python\n{F}\n```\nOutput:\n```\n2\n```", F),
    (f"```python\n{F}\n```\nRun:\n```bash\npython f.py\n```", F),
    (f"```python\n{F}\n```\nor rather\n```python\n{BAD}\n```", BAD),
    (f"```python\n{BAD}\n```\nNo:\n```python\n{F}\n```", F),
    (f"1. Do it:\n   ```python\n   {F.replace(chr(10), chr(10) + '   ')}\n   ```", F),
    (f"Here is the code:\n\n{F}\n\nIt adds one to x.", F),
    (f"Sure!\n{F}\n\nNote: f is fast, isn't it?", F),
    ("```def f(x): return x + 1\n```", "def f(x): return x + 1"),
    ("```python def f(x): return x + 1```", "def f(x): return x + 1"),
    ("`def f(x): return x + 1`", "def f(x): return x + 1"),
    (f"<answer>\n{F}\n</answer>", F),
    (f"<answer>\n```python\n{F}\n```\n</answer>", F),
    (f"[PYTHON]\n{F}\n[/PYTHON]", F),
    (f"```python\r\n{F.replace(chr(10), chr(13) + chr(10))}\r\n```", F),
    ('```python\ndef f(x):\n    """Adds.\n\n```\nf(1)\n```\n    """\n    return x + 1\n```', 'def f(x):\n    """Adds.\n\n```\nf(1)\n```\n    """\n    return x + 1'),
    ("```python\ndef f(x)\n    return x + 1\n```", "def f(x)\n    return x + 1"),
    (f"Here: ```python\n{F}\n```\nThat is all.", F),
    (f"- ```python\n  {F.replace(chr(10), chr(10) + '  ')}\n  ```\n- done", F),
    (f"> ```python\n> {F.replace(chr(10), chr(10) + '> ')}\n>\n> ```", F),
    (f"```python\n{F}```\nIt adds one.", F),
    (f"```python\n{F}\n```It adds one.\n```python\n{BAD}\n```", BAD),
    (f"```python\n{F}\n``", F),
    (f"```python\n{F}\n\n```bash\nls\n```", F),
    (f"```python\n{BAD}\n```python\n{F}\n```", F),
    (f"Not: ```python\n{BAD}\n```\nbut: ```python\n{F}\n```", F),
    (f"> - ```python\n>   {F.replace(chr(10), chr(10) + '>   ')}\n>   ```", F),
    (f"```python\n{LOOP}\n```\nindented right:\n```python\n{LOOP.replace('        return', '    return')}\n```", LOOP.replace("        return", "    return")),
    (f"```markdown\nSee\n```python\n{F}\n```\n```", F),
    (f"````\n```python\n{BAD}\n```\n```python\n{F}\n```\n````", F),
    (f"```\n```python\n{F}\n```", F),
    (f"```\npython\n{F}\n```", F),
    (f"python\n{F}\n```", F),
    (f"<|python_tag|>{F}", F),
    (f"<pre><code class=\"python\">{F.replace('return', 'return 0 &lt; x and')}</code></pre>", F.replace("return", "return 0 < x and")),
    (f"It is\n\n    {F.replace(chr(10), chr(10) + '    ')}\n\nand adds one.", F),
    ("```bash\npip install x\n```\n" + F, F),
    (f"```python\n{F}\n```\nThe head\n```python\ndef f(x):\n```\nand\n```python\n    return x + 1\n```", F),
    (f"```python\n{F}\n    # end\n```\nHere\n```python\nreturn x + 1\n```", f"{F}\n    # end"),
    (f"```python\n{F}\n\ny = 1\n```\nthe function\n```python\n{F}\n```", f"{F}\n\ny = 1"),
    (f"```python\n{F}\n```\n```python\ndef f(x):\n    \"\"\"Adds.\"\"\"\n    ...\n```", F),
    (f"```python\n{F}\n```\n```python\nfrom solution import f\nprint(f(1))\n```", F),
    (f"```python\n{F}\n```\n```\nf = 2\n```", F),
    (f"```python\n{F}\n```\n```python\nf = f(2)\n```", F),
    (f"```python\n{F}\n```\n```python\nf = abs\n```", "f = abs"),
    ("```python\nfrom math import sqrt as f\n```", "from math import sqrt as f"),
    (f"```python\n{F}\n```\nlast\n```python\ndef f(x):", "def f(x):"),
    (f"```python\n{F}\n```\nlast\n```python\ndef f(x)\n    return x\n```", "def f(x)\n    return x"),
    (f"```python\n{F}\n```\nshorter\n```python\ndef f(x): return x\n```", "def f(x): return x"),
    ('```python\nD = """\n```python\nf(1)\n```\n"""\n' + F + "\n```", 'D = """\n```python\nf(1)\n```\n"""\n' + F),
    (f"```python\nq = \"'''\"\n{F}\n```\nend\n```\n3\n```", f"q = \"'''\"\n{F}"),
    ("I cannot solve this.", None),
    ("", None),
    ("```python\n```", None),
    ("```python\nprint(1)\n```", None),
]  # fmt: skip


@pytest.mark.parametrize(("completion", "program"), STATED, ids=range(len(STATED)))
def test_a_function(completion, program):
    found = extract(completion, ["f"])
    assert (found and found.strip()) == program


def test_blocks_that_need_each_other():
    helper, main = "def g(x):\n    return x + 1", "def f(x):\n    return g(x)"
    found = extract(f"```python\n{helper}\n```\nthen\n```python\n{main}\n```\n```python\nf(2)\n```", ["f"])
    assert helper in found and main in found and "f(2)" not in found
    both = extract("```python\nclass A: pass\n```\nand\n```python\nclass B: pass\n```", ["A", "B"])
    assert "class A" in both and "class B" in both
    assert "x - 1" not in extract(
        f"```python\ndef g(x):\n    return x - 1\n```\n```python\n{helper}\n{main}\n```", ["f"]
    )


def test_a_stub_beside_another_name_of_the_tests():
    whole = "def g(x):\n    return x\n\ndef f(x):\n    return g(x) + 1"
    stub = whole.replace("return g(x) + 1", "pass")
    assert extract(f"```python\n{whole}\n```\nfrom\n```python\n{stub}\n```", ["f", "g"]) == whole
    better = "def g(x):\n    return x * 1"
    found = extract(f"```python\n{whole}\n```\nor\n```python\n{better}\n```", ["f", "g"])
    assert whole in found and found.endswith(better)


def test_helpers_from_a_later_block():
    main, helper = "def f(x):\n    n = x\n    return g(n)", "def g(x):\n    return x + 1"
    found = extract(f"```python\n{main}\n```\nwhere\n```python\n{helper}\n```\n```python\nn = 5\nf(n)\n```", ["f"])
    assert helper in found and main in found and "n = 5" not in found
    found = extract(f"```python\nn = 5\n```\n```python\n{main}\n```\n```python\n{helper}\n```", ["f"])
    assert helper in found and "n = 5" not in found  # a local name of `f` is not missing


SIGNATURE = (
    'from typing import List\n\ndef helper(x):\n    return x\n\ndef f(x: List[int]) -> int:\n    """Adds one."""\n'
)
BODIES = [
    "    \n  \n    return helper(x) + 1\n",
    "    return helper(x) + 1\n",
    "return helper(x) + 1",
    "    y = helper(x)\n    return y + 1\n\n\nprint(f(1))\ndef g(",
    " y = helper(x)\n    return y + 1",
    "```python\n    return helper(x) + 1\n```",
    "```python\nreturn helper(x) + 1\n```",
    "if x:\n    return helper(x) + 1\nreturn 1",
    "```python\ndef f(x: List[int]) -> int:\n    return helper(x) + 1\n```",
    "def f(x):\n    return helper(x) + 1",
]


@pytest.mark.parametrize("completion", BODIES, ids=range(len(BODIES)))
def test_a_body_of_the_prompts_signature(completion):
    for prompt in (SIGNATURE, f"Complete this:\n```python\n{SIGNATURE}```", f"Complete this function.\n\n{SIGNATURE}"):
        signature = prompt_code(prompt, ["f"])
        source = extract(completion, ["f"], signature)
        names = {}
        exec(compile(source, "f", "exec"), names)
        assert names["f"](1) == 2 and "List" in names


@pytest.mark.parametrize(
    "body", ["xs.sort()\nxs.reverse()", "    xs.sort()\n    xs.reverse()", "xs.sort()\n    xs.reverse()"]
)
def test_a_body_that_changes_its_argument(body):
    names, numbers = {}, [1, 3, 2]
    exec(extract(body, ["f"], 'def f(xs):\n    """Sorts."""\n'), names)
    names["f"](numbers)
    assert numbers == [3, 2, 1]


def test_a_body_of_the_prompts_method():
    head = "class Pair:\n    def __init__(self, a, b):\n        self.a, self.b = a, b\n\n    def total(self):\n"
    for body in (
        "        return self.a + self.b",
        "return self.a + self.b",
        "```python\n    return self.a + self.b\n```",
    ):
        names = {}
        exec(extract(body, ["Pair"], prompt_code(f"Complete this:\n\n{head}", ["Pair"])), names)
        assert names["Pair"](1, 2).total() == 3


def test_no_signature_where_the_prompt_has_none():
    assert prompt_code("Write a function f that adds one. def is short.", ["f"]) == ""
    assert prompt_code("def g(x):\n    pass", ["f"]) == ""


SCRIPT = "n = int(input())\nprint(n + 1)"
SCRIPTS = [
    (SCRIPT, SCRIPT),
    (f"```python\n{SCRIPT}\n```\nFor 3 it prints\n```\n4\n```", SCRIPT),
    (f"```python\nx = 1\nprint(x)\n```\nBetter:\n```python\n{SCRIPT}\n```", SCRIPT),
    (f"```\n{SCRIPT}\n```\n```\n3\n```", SCRIPT),
    (f"The program:\n\n{SCRIPT}\n\nThat is all, isn't it?", SCRIPT),
    ("```python\nimport os\nprint(os.name\n```", "import os\nprint(os.name"),
    (
        "```python\nprint(g())\n```\nwith\n```python\ndef g():\n    return int(input()) + 1\n```",
        "def g():\n    return int(input()) + 1\n\nprint(g())",
    ),
    (f"```python\n{SCRIPT}\n```\nSample:\n```python\nInput: 3\nOutput: 4\n```", SCRIPT),
    (f"```python\n{SCRIPT}\n```\nIt prints\n```python\nprint(n + 1)\n```", SCRIPT),
    (f"```python\n{SCRIPT}\n```\nbut not\n```python\nprint(n + 2)\n```", f"{SCRIPT}\n\nprint(n + 2)"),
    (f"```python\n{SCRIPT}\n```\nwith a loop\n```python\nfor i in range(n):\n    if i:\n```", SCRIPT),
    (f"Input\n```\n3\n```\n{SCRIPT}", SCRIPT),
    ("```python\ndef main():\n    print(1)\n```", "def main():\n    print(1)"),
    ("no code", None),
    ("42", None),
]


@pytest.mark.parametrize(("completion", "program"), SCRIPTS, ids=range(len(SCRIPTS)))
def test_a_script(completion, program):
    found = extract(completion, script=True)
    assert (found and found.strip()) == program


HOSTILE = ["```" * 5000, "`" * 9999, "~~~\n" * 3000, "def f(" * 5000, "(" * 90_000, "```python\n" + "f = " * 20_000, "x\n" * 50_000,
           "def f(x):\n" * 3000, "<answer>" * 3000, "```python\n\x00\n```", "\ud800", "def f(x): return 1\n" + "y\n(" * 20_000,
           "-" * 90_000 + "1", "[" * 200_000, "`a" * 20_000, " " * 100_000 + "`", "import a\n(" * 2000,
           "```python\n'''\n" + "```x y\n" * 20_000, "```\n~~~\n" * 9999, "<code>" * 20_000, "<pre>\n<code>" * 9999, "- " * 50_000 + "```",
           "```python\ndef f(x):\n    return 1\n```\n" + "```python\ndef f(x):\n```\n" * 3000,
           "```python\n" + "x = 1\n" * 6000 + "a```\n" * 6000, "```python\ndef f(x):\n    '''\n```\n" * 3000, "\n    def f(x):\nx\n" * 8000]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_texts_are_bounded(text):
    import time

    began = time.process_time()
    for options in ({"names": ["f"]}, {"script": True}, {"names": ["f"], "signature": SIGNATURE}):
        found = extract(text, **options)
        assert found is None or isinstance(found, str)
    prompt_code(text, ["f"])
    assert time.process_time() - began < 6
