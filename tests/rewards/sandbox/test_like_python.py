"""Programs that read stdin do in the sandbox what they do under a plain Python: the same output, the same end."""

# ruff: noqa: E501  (programs as texts)

import subprocess
import sys

import pytest

from trl_grpo_plus.rewards.sandbox.judge import judge_script

PROGRAMS = {
    "a destructor": "class D:\n    def __del__(s): print('6')\nd = D()",
    "a destructor in a cycle": "class D:\n    def __init__(s): s.me = s\n    def __del__(s): print('6')\nd = D()",
    "a file of descriptor 1": "import os\nf = os.fdopen(1, 'w')\nprint(6, file=f)",
    "finally of a generator": "def g():\n    try: yield\n    finally: print('6')\nx = g(); next(x)",
    "an open file on descriptor 1": "f = open(1, 'w')\nf.write('6\\n')",
    "output to the stream that was replaced": "import sys, io\no = sys.stdout\nsys.stdout = io.StringIO()\nprint('noise')\no.write('6\\n')",
    "no stdout any more": "import sys\nout = sys.stdout\nsys.stdout = None\nout.write('42\\n')",
    "closing stdout": "import sys\nprint(6)\nsys.stdout.close()",
    "its own file's name": "import os\nprint(__file__ is not None, bool(os.path.dirname(os.path.abspath(__file__))))",
    "wrapper": "import sys, io\nsys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding='utf-8')\nprint('é')",
    "wrapper detach": "import sys, io\nsys.stdout = io.TextIOWrapper(sys.stdout.detach(), encoding='utf-8')\nprint('é')",
    "a destructor that uses globals": "x = 5\nclass D:\n    def __del__(s): print(x, len('ab'))\nd = D()\ny = 7\n",
    "order of destructors": "class D:\n    def __init__(s, n): s.n = n\n    def __del__(s): print(s.n)\nb = D('b')\n_a = D('a')\nc = D('c')\n",
    "finalize": "import weakref\nclass D: pass\nd = D()\nweakref.finalize(d, print, 'bye')\nprint('hi')",
    "atexit then del": "import atexit\natexit.register(print, 'x')\nclass D:\n    def __del__(s): print('y')\nd = D()",
    "atexit raises": "import atexit\natexit.register(lambda: 1/0)\nprint(1)\n",
    "a destructor that raises": "class D:\n    def __del__(s): 1/0\nd = D()\nprint(2)",
    "a destructor that exits": "import sys\nclass D:\n    def __del__(s): sys.exit(3)\nd = D()\nprint(2)",
    "a destructor that ends the process": "import os\nclass D:\n    def __del__(s): os._exit(3)\nd = D()\nprint(2, flush=True)",
    "custom stdout": "import sys\nclass W:\n    def __init__(s, o): s.o, s.b = o, []\n    def write(s, t): s.b.append(t)\n    def flush(s): s.o.write(''.join(s.b)); s.b.clear(); s.o.flush()\nsys.stdout = W(sys.stdout)\nprint(3)",
    "flush raises": "import sys\nclass W:\n    def write(s, t): pass\n    def flush(s): raise OSError\nsys.stdout = W()\nprint(3)",
    "closed fd": "import os\nprint(1)\nos.close(1)\n",
    "exit in thread": "import threading, time\ndef f():\n    time.sleep(0.1); print('t')\nthreading.Thread(target=f).start()\nprint('m')",
    "exit text": "import sys\nprint(1)\nsys.exit('bad')",
    "raise SystemExit 0": "print(1)\nraise SystemExit(0)",
    "a pool of threads that is not closed": "from concurrent.futures import ThreadPoolExecutor\ne = ThreadPoolExecutor(2)\ne.submit(print, 5)\n",
    "finally of an async generator": "import asyncio\nasync def g():\n    try:\n        yield 1\n    finally: print('f')\nasync def m():\n    async for x in g(): break\nasyncio.run(m())",
    "a context that is never left": "import contextlib\n@contextlib.contextmanager\ndef c():\n    print('in')\n    try: yield\n    finally: print('out')\nk = c(); k.__enter__()",
    "stdin": "import sys\nprint(open(0).read())",
    "/dev/stdin": "print(open('/dev/stdin').read())",
    "/dev/fd/0": "print(open('/dev/fd/0').read())",
    "/dev/stdout": "f = open('/dev/stdout', 'w')\nf.write('x')\n",
    "importing itself": "import __main__\nprint(__main__.__name__, __name__)",
    "getsource": "import inspect\ndef f(): return 1\nprint(inspect.getsource(f))",
    "attributes of the module": '"""d"""\nprint(__doc__, __name__, __spec__ is None, __package__)',
    "excepthook thread": "import threading\ndef f(): 1/0\nthreading.Thread(target=f).start()\nprint(1)",
    "a daemon thread": "import threading, time\ndef f():\n    while True: time.sleep(0.01)\nthreading.Thread(target=f, daemon=True).start()\nprint(1)",
    "os.write": "import os\nos.write(1, b'x')\nprint('y')",
    "reconfigure": "import sys\nsys.stdout.reconfigure(line_buffering=True, encoding='utf-8')\nprint('é')",
    "/dev/stdin in other ways": "import io, pathlib\nprint(pathlib.Path('/dev/stdin').read_text(), io.open('/proc/self/fd/0', 'rb').read(0))",
    "held by another module": "import math, __main__\nmath.main = __main__\nf = open(1, 'w')\nf.write('x')\n",
    "stdout mode": "import sys\nprint(sys.stdout.mode, sys.stdin.mode, sys.stdout.errors, sys.stdin.errors, sys.stdout.encoding, sys.stderr.name)",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_ends_as_under_python(sandbox, limits, name, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAMS[name], encoding="utf-8")
    plain = subprocess.run(
        [sys.executable, "-I", program], input=b"in\n", capture_output=True, cwd=tmp_path, timeout=60
    )
    score = judge_script(sandbox, PROGRAMS[name], [("in\n", plain.stdout.decode())], limits)
    assert score.all == (plain.returncode == 0), (plain, score)
