"""Silences what the libraries say on every run and no user can act on; the command line calls it first."""

from __future__ import annotations

import logging
import warnings


def quiet() -> None:
    """Turns off progress bars of loading, and notices about deprecations and optional packages of other libraries."""
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", message=".*pin_memory.*")
    for name in ("bitsandbytes", "datasets"):
        logging.getLogger(name).setLevel(logging.ERROR)
    import datasets
    from transformers.utils import logging as transformers_logging

    datasets.disable_progress_bars()
    transformers_logging.disable_progress_bar()
