"""Whole optimizer steps: stock `trl.GRPOTrainer` against ours, interleaved in one process, same model and prompts.

Per point of a grid it measures, for each trainer, the time of the whole step and of its phases (generation, reference
and old log-probabilities, forward, backward, optimizer), the token positions that ran, and the peak of tensor memory
in the update. Ratios are of medians, stock over ours for times, ours over stock for memory.

    python benchmarks/bench_step.py                      # the named points
    python benchmarks/bench_step.py --points grid        # the grid
    python benchmarks/bench_step.py --geometry DIR ...   # a model directory (SmolLM2)

Time with one thread where anything else runs on the machine: oversubscribed threads ruin ratios.
"""

import argparse
import dataclasses
import gc
import json
import math
import os
import random
import statistics
import sys
import tempfile
import time
import weakref
from collections import defaultdict
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

import torch  # noqa: E402
import transformers  # noqa: E402
import trl  # noqa: E402
from datasets import Dataset  # noqa: E402
from peft import LoraConfig  # noqa: E402
from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: E402
from transformers import (  # noqa: E402  # noqa: E402
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    PrinterCallback,
    ProgressCallback,
    TrainerCallback,
)
from update_peak import Peak  # noqa: E402

import trl_grpo_plus  # noqa: E402
from trl_grpo_plus._quiet import quiet  # noqa: E402
from trl_grpo_plus.report import environment  # noqa: E402

GEOMETRIES = {
    "llama-10m": {
        "architecture": "LlamaConfig", "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 6,
        "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 4096,
    },
    "tiny": {
        "architecture": "LlamaConfig", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512,
    },
    "qwen2.5-1.5b": {
        "architecture": "Qwen2Config", "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28,
        "num_attention_heads": 12, "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True,
    },
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Point:
    """One setting: prompt and completion length in tokens, group size, prompts a micro-batch."""

    P: int
    C: int
    G: int = 8
    prompts: int = 2
    skewed: bool = False  # lengths geometric with mean C / 3, cut at C; otherwise all C
    dead: float = 0.0  # share of groups whose rewards are all equal
    lora: bool = False
    beta: float = 0.0

    @property
    def name(self) -> str:
        parts = [f"P{self.P}-C{self.C}-G{self.G}-B{self.prompts}", "skewed" * self.skewed]
        parts += [f"dead{self.dead:.0%}" * (self.dead > 0), "lora" * self.lora, f"beta{self.beta}" * (self.beta > 0)]
        return "-".join(part for part in parts if part)


# The points that bars are set for: (bars are minima of ratios stock / ours, and a maximum of memory ours / stock).
BARS = {
    Point(1024, 64): {"step": 4.0, "forward+backward": 4.5, "generation": 2.2, "memory": 0.35},
    Point(256, 64): {"step": 2.5, "forward+backward": 2.8, "generation": 1.4, "memory": 0.5},
    Point(64, 256, prompts=8, skewed=True): {
        "step": 1.5, "forward+backward": 1.6, "generation": 1.8, "memory": 0.7,
    },
    Point(64, 256, prompts=8, skewed=True, dead=0.5): {"step": 1.6, "forward+backward": 2.5},
    Point(16, 64): {"step": 0.97, "forward+backward": 0.97, "generation": 0.97, "memory": 1.02},
}  # fmt: skip


def grid() -> list[Point]:
    """Every factor varied by itself around a short, a middle and a long prompt."""
    points = []
    for P in (64, 256, 1024):
        base = Point(P, 64)
        points.append(base)
        points += [dataclasses.replace(base, G=G) for G in (4, 16)]
        points.append(dataclasses.replace(base, C=256, skewed=True))
        points.append(dataclasses.replace(base, dead=0.5))
        points.append(dataclasses.replace(base, lora=True))
        points.append(dataclasses.replace(base, beta=0.04))
        points.append(dataclasses.replace(base, lora=True, beta=0.04))
    return points


def word_tokenizer(size: int) -> PreTrainedTokenizerFast:
    vocabulary = {f"t{i}": i for i in range(size)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="t3"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="t0", bos_token="t1", eos_token="t2", padding_side="left"
    )


def build_model(geometry: str, dtype: torch.dtype, device: str, directory: Path) -> str:
    """Returns a model directory: the geometry with random weights, or the directory given."""
    if Path(geometry).is_dir():
        return geometry
    fields = dict(GEOMETRIES[geometry])
    config_class = getattr(transformers, fields.pop("architecture"))
    config = config_class(**fields, max_position_embeddings=4096, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    path = directory / geometry
    model.save_pretrained(path)
    word_tokenizer(config.vocab_size).save_pretrained(path)
    return str(path)


def prompts(point: Point, tokenizer, count: int) -> Dataset:
    """Returns prompts of exactly P tokens each, and which of them have no signal."""
    rng = random.Random(0)
    special = set(tokenizer.all_special_ids)
    usable = [i for i in range(len(tokenizer)) if i not in special]
    rows = []
    for i in range(count):
        text, ids = "", []
        while len(ids) != point.P:  # a real tokenizer may merge what was drawn apart
            ids = [rng.choice(usable) for _ in range(point.P)]
            text = tokenizer.decode(ids)
            ids = tokenizer(text)["input_ids"][: point.P]
            text = tokenizer.decode(ids)
            ids = tokenizer(text)["input_ids"]
            if not text.startswith("t"):
                break
        rows.append({"prompt": text, "dead": i % 2 == 0 if point.dead == 0.5 else False})
    return Dataset.from_list(rows)


def reward(completion_ids, dead, **kwargs):
    """Half of the completions of a live group score 1, whatever they say; those of a dead one score alike."""
    return [0.0 if d else float(i % 2) for i, d in enumerate(dead)]


class Clock(TrainerCallback):
    """Seconds by phase, one entry per optimizer step."""

    def __init__(self, synchronize):
        self.synchronize = synchronize
        self.steps = []
        self.now = defaultdict(float)

    def read(self):
        self.synchronize()
        return time.perf_counter()

    def wrap(self, owner, name, phase):
        function = getattr(owner, name)

        def timed(*args, **kwargs):
            start = self.read()
            result = function(*args, **kwargs)
            self.now[phase() if callable(phase) else phase] += self.read() - start
            return result

        setattr(owner, name, timed)

    def attach(self, trainer):
        self.wrap(trainer, "_generate_single_turn", "generation")
        self.wrap(
            trainer,
            "_get_per_token_logps_and_entropies",
            lambda: "forward" if torch.is_grad_enabled() else "reference",
        )
        self.wrap(trainer.accelerator, "backward", "backward")
        trainer.add_callback(self)

    def on_step_begin(self, args, state, control, **kwargs):
        self.now = defaultdict(float)
        self.begin = self.read()

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        self.optimizer_begin = self.read()

    def on_optimizer_step(self, args, state, control, **kwargs):
        self.now["optimizer"] += self.read() - self.optimizer_begin

    def on_step_end(self, args, state, control, **kwargs):
        self.now["step"] = self.read() - self.begin
        self.now["forward+backward"] = self.now["forward"] + self.now["backward"]
        self.steps.append(dict(self.now))


def build_trainer(base, config, point: Point, directory: str, options: argparse.Namespace, **ours):
    tokenizer = AutoTokenizer.from_pretrained(directory, padding_side="left")
    vocabulary = AutoConfig.from_pretrained(directory).vocab_size
    kwargs = {"min_new_tokens": point.C}
    if point.skewed:  # EOS with probability 3 / C at every token
        kwargs = {"sequence_bias": [[[tokenizer.eos_token_id], math.log(vocabulary * 3 / point.C)]]}
    rows = point.prompts * point.G
    args = config(
        output_dir=str(Path(options.scratch) / "out"),
        per_device_train_batch_size=rows,
        num_generations=point.G,
        max_completion_length=point.C,
        generation_kwargs=kwargs,
        max_steps=10_000,
        shuffle_dataset=False,  # so that every batch has its share of groups without signal
        learning_rate=1e-6,
        lr_scheduler_type="constant",
        beta=point.beta,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=options.device == "cpu",
        bf16=options.dtype == "bfloat16",
        gradient_checkpointing=False,
        dataloader_pin_memory=False,
        model_init_kwargs={"dtype": options.dtype},
        **ours,
    )
    trainer = base(
        directory,
        reward,
        args,
        prompts(point, tokenizer, 16 * point.prompts),
        processing_class=tokenizer,
        peft_config=LoraConfig(r=16, target_modules="all-linear") if point.lora else None,
    )
    for callback in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(callback)
    return trainer


def steps(trainer, count: int) -> None:
    trainer.args.max_steps = count
    trainer.train()


ARMS = {
    "stock": (trl.GRPOTrainer, trl.GRPOConfig),
    "ours": (trl_grpo_plus.GRPOTrainer, trl_grpo_plus.GRPOConfig),
}


def measure_peaks(point: Point, directory: str, options: argparse.Namespace) -> dict[str, float]:
    """Returns the peak memory of an update by trainer, MiB; one trainer is there at a time."""
    peaks = {}
    for name, (base, config) in ARMS.items():
        trainer = build_trainer(base, config, point, directory, options)
        peak = Peak(trainer, options.device)
        trainer.add_callback(peak)
        steps(trainer, 1)
        peak.peak_mib = None  # the first step allocates the optimizer's state
        steps(trainer, 1)
        peaks[name] = peak.peak_mib
        model = weakref.ref(trainer.model)
        del trainer, peak
        gc.collect()
        assert model() is None, "what is left of one trainer would count for the next"
        if options.device == "cuda":
            torch.cuda.empty_cache()
    return peaks


def measure(point: Point, options: argparse.Namespace) -> dict:
    """Returns medians by trainer and phase, and their ratios."""
    directory = build_model(options.geometry, getattr(torch, options.dtype), options.device, Path(options.scratch))
    synchronize = torch.cuda.synchronize if options.device == "cuda" else lambda: None
    peaks = measure_peaks(point, directory, options)
    arms = {name: build_trainer(*classes, point, directory, options) for name, classes in ARMS.items()}
    for trainer in arms.values():
        steps(trainer, 1)  # warm-up: the comparison with the plain path, lazy initialisation
    clocks = {name: Clock(synchronize) for name in arms}
    for name, trainer in arms.items():
        clocks[name].attach(trainer)
    for _ in range(options.repeats):
        for name, trainer in arms.items():
            steps(trainer, options.steps)
            del clocks[name].steps[-options.steps]  # the first step of a `train()` sets things up
    medians = {
        name: {key: statistics.median(s.get(key, 0.0) for s in clock.steps) for key in clock.steps[0]}
        for name, clock in clocks.items()
    }
    logs = [log for log in arms["ours"].state.log_history if "work/tokens_run" in log]
    ratios = {
        key: medians["stock"][key] / medians["ours"][key]
        for key in ("step", "forward+backward", "generation", "reference", "forward", "backward")
        if medians["stock"].get(key) and medians["ours"].get(key)
    }
    ratios["memory"] = peaks["ours"] / peaks["stock"]
    return {
        "point": point.name,
        **dataclasses.asdict(point),
        "seconds": medians,
        "peak_mib": peaks,
        "tokens_run": statistics.mean(log["work/tokens_run"] for log in logs),
        "tokens_stock": statistics.mean(log["work/tokens_stock"] for log in logs),
        "measured_steps": len(clocks["ours"].steps),
        "ratios": ratios,
        "bars": BARS.get(point, {}),
        "savings": arms["ours"].savings(),
    }


def missed(result: dict) -> list[str]:
    """Returns the bars that a result misses."""
    found = []
    for key, bar in result["bars"].items():
        value = result["ratios"].get(key)
        if value is not None and (value > bar if key == "memory" else value < bar):
            found.append(f"{key} {value:.2f} against {bar}")
    return found


def plot(path: Path) -> None:
    """Draws the ratios of a results file as bars, one group a point, beside it as PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    results = json.loads(path.read_text())["results"]
    figure = Figure(figsize=(9, 1.2 + 0.42 * len(results)), layout="constrained")
    axes = figure.subplots()
    kinds = ("step", "forward+backward", "generation")
    for shift, kind in zip((-0.27, 0.0, 0.27), kinds, strict=True):
        places = [i + shift for i in range(len(results))]
        axes.barh(places, [r["ratios"].get(kind, 0.0) for r in results], height=0.25, label=kind)
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_yticks(range(len(results)), [r["point"] for r in results])
    axes.invert_yaxis()
    axes.set_xlabel("time of stock TRL / ours")
    axes.legend()
    figure.savefig(path.with_suffix(".png"), dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", default="bars", help="bars, grid, or names separated by commas")
    parser.add_argument("--geometry", default="llama-10m", help=f"{', '.join(GEOMETRIES)}, or a model directory")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3, help="turns of each trainer")
    parser.add_argument("--steps", type=int, default=3, help="steps of a turn, the first of which is not counted")
    parser.add_argument("--scratch", default=str(Path(tempfile.gettempdir()) / "bench_step"))
    parser.add_argument("--out", default=None, help="JSON file; results of the same points in it are replaced")
    parser.add_argument("--custom", default=None, help='JSON list of points: [{"P": 1024, "C": 512, "lora": true}]')
    parser.add_argument("--memory-only", action="store_true", help="measure the memory of the results in --out anew")
    options = parser.parse_args()
    quiet()
    torch.set_num_threads(options.threads)
    if options.custom:
        points = [Point(**fields) for fields in json.loads(options.custom)]
    elif options.points == "bars":
        points = list(BARS)
    elif options.points == "grid":
        points = grid()
    else:
        known = {p.name: p for p in [*BARS, *grid()]}
        points = [known[name] for name in options.points.split(",")]
    if options.memory_only:
        measure_memory_anew(Path(options.out), options)
        return
    results = []
    for point in points:
        result = measure(point, options)
        results.append(result)
        ratios = "  ".join(f"{k} {v:.2f}x" for k, v in result["ratios"].items())
        print(f"{point.name}: {ratios}", *[f"MISSED {text}" for text in missed(result)], flush=True)
        if options.out:
            write(Path(options.out), results, options)
            plot(Path(options.out))


def measure_memory_anew(path: Path, options: argparse.Namespace) -> None:
    """Replaces the peaks of a results file; the times stay."""
    record = json.loads(path.read_text())
    fields = [field.name for field in dataclasses.fields(Point)]
    for result in record["results"]:
        point = Point(**{name: result[name] for name in fields})
        directory = build_model(options.geometry, getattr(torch, options.dtype), options.device, Path(options.scratch))
        peaks = result["peak_mib"] = measure_peaks(point, directory, options)
        result["ratios"]["memory"] = peaks["ours"] / peaks["stock"]
        print(f"{point.name}: memory {result['ratios']['memory']:.2f}x", *missed(result), flush=True)
        path.write_text(json.dumps(record, indent=1) + "\n")


def write(path: Path, results: list[dict], options: argparse.Namespace) -> None:
    old = json.loads(path.read_text())["results"] if path.exists() else []
    new = {result["point"] for result in results}
    record = {
        "command": " ".join(["python", *sys.argv]),
        "geometry": Path(options.geometry).name,
        "dtype": options.dtype,
        "threads": options.threads,
        "environment": environment(),
        "results": [r for r in old if r["point"] not in new] + results,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
