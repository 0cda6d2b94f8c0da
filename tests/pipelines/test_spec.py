"""A pipeline's file: what it may say, overrides, references, and mistakes that are named."""

from pathlib import Path

import pytest
import yaml

from trl_grpo_plus.errors import UserError
from trl_grpo_plus.pipelines.run import check_recipes, dependencies
from trl_grpo_plus.pipelines.spec import load_pipeline, resolve

SFT = {"algorithm": "sft", "prompts": "${data}/train.jsonl", "use_cpu": True, "bf16": False}


@pytest.fixture
def write(tmp_path):
    def write(stages=None, evaluation=None, recipes=None, **keys):
        recipes = recipes or {"sft.yaml": {**SFT, "model_name_or_path": "${data}/model"}}
        for name, recipe in recipes.items():
            (tmp_path / name).write_text(yaml.safe_dump(recipe))
        stages = stages or [{"data": {"call": "tests.pipelines.calls:make", "options": {"n": 2}}}, {"sft": "sft.yaml"}]
        pipeline = {"output_dir": str(tmp_path / "run"), "stages": stages, "evaluation": evaluation, **keys}
        (tmp_path / "pipeline.yaml").write_text(yaml.safe_dump({k: v for k, v in pipeline.items() if v is not None}))
        return tmp_path / "pipeline.yaml"

    return write


def test_stages_references_and_overrides(write):
    evaluation = {"prompts": "${data}/test.jsonl", "rewards": ["exact_match"], "samples": 2, "majority": 2}
    overrides = ["--sft.max_steps", "3", "--sft.prompts.size", "5", "--data.n", "7", "--evaluation.seed", "4"]
    pipeline = load_pipeline(write(evaluation=evaluation, recipes={
        "sft.yaml": {**SFT, "model_name_or_path": "${data}/model", "prompts": {"source": "${data}/train.jsonl"}}
    }), [*overrides, "--output_dir", "elsewhere"])  # fmt: skip
    data, sft = pipeline.stages
    assert (data.algorithm, dict(data.options), data.uses) == ("call", {"n": 7}, frozenset())
    assert sft.keys["max_steps"] == 3 and sft.keys["prompts"] == {"source": "${data}/train.jsonl", "size": 5}
    assert sft.uses == {"data"} and pipeline.evaluation.seed == 4 and pipeline.output_dir == Path("elsewhere")
    assert pipeline.after(["data"]) == ["data", "sft"] and pipeline.after(["sft"]) == ["sft"]
    (recipe,) = check_recipes(pipeline)
    assert recipe.args.max_steps == 3 and recipe.model.model_name_or_path == "elsewhere/data/output/model"
    assert resolve({"a": ["${data}/x", 1]}, {"data": "there"}) == {"a": ["there/x", 1]}


def test_what_a_stage_depends_on(write, tmp_path):
    pipeline = load_pipeline(write())
    data, sft = pipeline.stages
    output = tmp_path / "run/data/output"
    (output / "model").mkdir(parents=True)
    (output / "model/weights").write_text("1")
    (output / "train.jsonl").write_text("{}")
    outputs = {"data": str(output)}
    first = dependencies(sft, outputs, {})
    assert set(first.inputs) == {"${data}/model", "${data}/train.jsonl"}
    assert dependencies(sft, outputs, {}) == first
    (output / "model/weights").write_text("2")
    assert dependencies(sft, outputs, {}).inputs["${data}/model"] != first.inputs["${data}/model"]
    logging = load_pipeline(tmp_path / "pipeline.yaml", ["--sft.report_to", "none", "--sft.save_steps", "7"])
    assert dependencies(logging.stages[1], outputs, {}).config == first.config
    assert "the code of tests.pipelines.calls:make" in dependencies(data, {}, {}).inputs


@pytest.mark.parametrize(
    ("change", "overrides", "message"),
    [
        ({"stages": [{"sft": "sft.yaml"}]}, [], r"`\$\{data\}` in stage `sft` names no stage before it"),
        ({"stages": [{"sft": "none.yaml"}]}, [], "no such recipe of stage `sft`: .*none.yaml"),
        ({"stages": "x"}, [], "`stages` must be a list"),
        ({"stages": [{"Bad name": "x.yaml"}]}, [], "small letters"),
        ({"stages": [{"a": {"recipe": "x.yaml", "call": "y:z"}}]}, [], "stage `a` needs a recipe, or"),
        ({"stages": [{"a": {"call": "m:f", "optoins": {}}}]}, [], "no key `optoins` .did you mean `options`"),
        ({"stages": [{"a": {"call": "m:f"}}] * 2}, [], "two stages are named `a`"),
        ({"stage": []}, [], "unknown key `stage` .did you mean `stages`"),
        ({"evaluation": {"prompts": "x"}}, [], "`evaluation` needs `rewards`"),
        ({"evaluation": {"prompts": "x", "rewards": ["math"], "n": 3}}, [], "unknown key `evaluation.n`"),
        ({"evaluation": {"prompts": "x", "rewards": ["math"], "samples": 2}}, [], "majority must be in 1..samples=2"),
        ({"evaluation": {"prompts": "${sft}", "rewards": ["math"]}}, [], "must name a stage before the first one"),
        ({"recipes": {"sft.yaml": {**SFT, "output_dir": "x"}}}, [], "`output_dir` is the pipeline's to say"),
        ({}, ["--stf.max_steps", "3"], "unknown option `--stf.max_steps` .did you mean `sft`"),
        ({}, ["--max_steps", "3"], "the stages are data, sft"),
    ],
)
def test_mistakes(write, change, overrides, message):
    with pytest.raises(UserError, match=message):
        load_pipeline(write(**change), overrides)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["--sft.max_stpes", "3"], "unknown key `max_stpes` .did you mean `max_steps`"),
        (["--data.m", "3"], "`tests.pipelines.calls:make` cannot be called as it is written"),
    ],
)
def test_mistakes_of_the_last_stage_show_before_the_first_runs(write, overrides, message):
    with pytest.raises(UserError, match=message):
        check_recipes(load_pipeline(write(), overrides))
    with pytest.raises(UserError, match="no stage `stf` .did you mean `sft`"):
        load_pipeline(write()).after(["stf"])
