"""Start of the server process: makes this directory importable as a package of its own, without the trainer's.

usage: python -I -S boot.py CONTROL_FD CONFIGURATION_JSON
"""

import importlib.util
import os
import sys

PACKAGE = "_grpo_plus_inside"


def main() -> None:
    """Imports the package under its private name and runs the server; does not return."""
    here = os.path.dirname(os.path.abspath(__file__))
    spec = importlib.util.spec_from_file_location(
        PACKAGE, os.path.join(here, "__init__.py"), submodule_search_locations=[here]
    )
    assert spec is not None and spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules[PACKAGE] = package
    spec.loader.exec_module(package)
    server = importlib.import_module(f"{PACKAGE}.server")
    server.main(int(sys.argv[1]), sys.argv[2])


if __name__ == "__main__":
    main()
