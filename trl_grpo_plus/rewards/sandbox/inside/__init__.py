"""What runs in the sandbox's own processes: the server, and the confined processes that it forks.

Everything here uses the standard library alone and is imported twice: by the trainer's side (tables, codec) as part of
the package, and by the server, a bare `python -I -S` that knows no package, through `boot.py`.

    boot -> server       waits for jobs, forks, keeps the time, reports how each process ended
            confine      what a forked process gives up before it runs anything: limits, namespaces, seccomp, landlock
            program      the model's program: as a script, called by expressions, or served to a tester
            tester       the dataset's tests, in another process, against proxies of the program's objects
            codec        the only form in which values leave a program's process
"""
