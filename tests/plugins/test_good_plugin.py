"""A wheel that implements every hook: what each returns arrives where it is used, with no change to the core."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scratch import Environment

pytestmark = pytest.mark.slow_file

CONFIG = {"architectures": ["GoodForCausalLM"], "vocab_size": 256}


@pytest.fixture(scope="module")
def environment(
    make_environment: Callable[..., Environment], wheels: dict[str, Path], fixture_wheels: dict[str, Path]
) -> Environment:
    """The core and the fixture, and nothing else of llmk."""
    return make_environment(wheels["core"], fixture_wheels["good"])


def write_checkpoint(folder: Path, **config: Any) -> Path:
    """The small files of a checkpoint of the fixture's architecture."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG | config))
    (folder / "chat_template.jinja").write_text("[GOOD] {{ messages }}")
    return folder


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "checkpoint")


def explain(environment: Environment, checkpoint: Path, *flags: str, on: str = "good/g1", **environ: str) -> Any:
    """The plan, as ``llmk explain --json`` prints it."""
    place = ["--on", on] if on else []
    folder = checkpoint if checkpoint.is_dir() else checkpoint.parent
    done = environment.llmk("explain", str(checkpoint), *place, *flags, "--json", cwd=folder, **environ)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def choice(plan: Any, kind: str, site: str) -> Any:
    """The choice for one site."""
    (found,) = (one for one in plan["choices"] if (one["kind"], one["site"]) == (kind, site))
    return found


def chosen(plan: Any, kind: str, site: str) -> str:
    """The id that serves one token at a site."""
    found: str = choice(plan, kind, site)["pieces"][0]["id"]
    return found


def rejection_codes(plan: Any, kind: str, site: str, id: str) -> list[str]:
    """Why a candidate was turned down at a site."""
    (rejected,) = (one for one in choice(plan, kind, site)["rejected"] if one["id"] == id)
    return [reason["code"] for reason in rejected["reasons"]]


def ask(environment: Environment, checkpoint: Path, expression: str) -> Any:
    """Evaluates an expression of ``registry`` and ``checkpoint`` inside the environment."""
    code = f"""
import json
from llmk.api import GrammarSpec, IOProcessorSpec, LogitsProcessorSpec, RouteSpec, StatLoggerSpec
from llmk.config import Config
from llmk.planning.checkpoint.folder import read_checkpoint
from llmk.kernel.registry import Registry
from llmk.planning.choices.parsers import choose_parser
from llmk.serve.http.pages import load_pages
config = Config()
registry = Registry.discover(config.plugins)
checkpoint = read_checkpoint({str(checkpoint)!r})
print(json.dumps({expression}))
"""
    done = environment.run(code, cwd=checkpoint)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_plugin_is_active(environment: Environment, checkpoint: Path) -> None:
    done = environment.llmk("plugins", "--json", cwd=checkpoint)
    assert done.returncode == 0, done.stderr
    (plugin,) = (one for one in json.loads(done.stdout) if one["name"] == "good")
    assert (plugin["state"], plugin["distribution"], plugin["version"]) == ("active", "fixture-good", "1.0")
    assert plugin["reasons"] == []
    known = environment.run(
        "from llmk.api import hooks; print(*(n for n in vars(hooks) if n[:5] == 'llmk_'))", cwd=checkpoint
    )
    assert set(plugin["hooks"]) == set(known.stdout.split()), "the fixture implements every hook"


@pytest.mark.hook("llmk_platforms")
def test_platform_that_is_not_here_is_planned_for(environment: Environment, checkpoint: Path) -> None:
    plan = explain(environment, checkpoint, on="good/g1")
    assert plan["platform_id"] == "good.platform"
    assert (plan["platform"]["arch"], plan["platform"]["features"]) == ("g1", ["sparkle"])
    assert explain(environment, checkpoint, on="good/g2")["platform"]["arch"] == "g2"


@pytest.mark.hook("llmk_platforms")
def test_platform_is_used_where_its_probe_finds_the_device(environment: Environment, checkpoint: Path) -> None:
    absent = environment.llmk("explain", str(checkpoint), cwd=checkpoint)
    assert absent.returncode == 4
    assert "FIXTURE_GOOD_DEVICE" in absent.stderr
    assert "plug the device in" in absent.stderr
    assert explain(environment, checkpoint, on="", FIXTURE_GOOD_DEVICE="1")["platform_id"] == "good.platform"


@pytest.mark.parametrize(
    ("kind", "site", "id"),
    [
        pytest.param("attention", "attention", "good.attention", id="llmk_attention_backends"),
        pytest.param("linear", "up", "good.linear", id="llmk_linear_kernels"),
        pytest.param("moe", "experts", "good.moe", id="llmk_moe_kernels"),
        pytest.param("op", "norm", "good.rms_norm", id="llmk_ops"),
    ],
)
@pytest.mark.hook("llmk_attention_backends")
@pytest.mark.hook("llmk_linear_kernels")
@pytest.mark.hook("llmk_moe_kernels")
@pytest.mark.hook("llmk_ops")
def test_kernel_wins_where_its_needs_are_met(
    environment: Environment, checkpoint: Path, kind: str, site: str, id: str
) -> None:
    assert chosen(explain(environment, checkpoint, on="good/g1"), kind, site) == id
    plan = explain(environment, checkpoint, on="good/g2")
    assert chosen(plan, kind, site).startswith("reference.")
    assert "missing_feature" in rejection_codes(plan, kind, site, id)


@pytest.mark.hook("llmk_quantization_methods")
def test_quantization_method_names_the_weight_format(environment: Environment, tmp_path: Path) -> None:
    stored = write_checkpoint(tmp_path / "quantized", quantization_config={"quant_method": "good"})
    plan = explain(environment, stored)
    assert [method["id"] for method in plan["quantization"]] == ["good.int4"]
    assert choice(plan, "linear", "up")["query"]["weight_format"] == "int4_group"

    strange = write_checkpoint(tmp_path / "strange", quantization_config={"quant_method": "strange"})
    done = environment.llmk("explain", str(strange), "--on", "good/g2", cwd=tmp_path)
    assert done.returncode == 5
    assert "'strange'" in done.stderr
    assert "good.int4" in done.stderr


@pytest.mark.hook("llmk_model_sources")
def test_a_named_model_is_got_from_the_source_that_claims_it(environment: Environment, tmp_path: Path) -> None:
    """With the plugin's own options, and a progress that is shown; ``llmk models`` lists what the source has."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    for name in ("whole", "half"):
        write_checkpoint(shelf / name)
    given = {"cwd": tmp_path, "GOOD_SHELF": str(shelf), "LLMK__PLUGIN__GOOD__COLOR": "green"}
    done = environment.llmk("explain", "good:whole", "--on", "good/g1", "--json", **given)
    assert json.loads(done.stdout)["model"] == "good.model", done.stderr
    assert "downloading good:whole: 100 B of 100 B" in done.stderr
    assert environment.llmk("pull", "good:whole", **given).stdout.strip() == str(shelf / "whole")
    assert "the green shelf has no other" in environment.llmk("pull", "good:other", **given).stderr
    broken = environment.llmk("pull", "good:broken", **given)
    assert "good.source of fixture-good 1.0 can't get the model good:broken" in broken.stderr
    assert "OSError: the shelf is broken" in broken.stderr
    rows = json.loads(environment.llmk("models", "--json", **given).stdout)
    assert [(row["name"], row["architecture"]) for row in rows] == [
        ("good:half", "GoodForCausalLM"),
        ("good:whole", "GoodForCausalLM"),
    ]
    assert rows[0]["problem"] == "not complete: llmk pull good:half"


@pytest.mark.hook("llmk_checkpoint_formats")
def test_files_of_a_format_are_checkpoints(environment: Environment, tmp_path: Path) -> None:
    """Named by the file, or by the folder; with the plugin's own options."""
    (tmp_path / "model.one").write_bytes(b"GOOD" + json.dumps(CONFIG).encode() + b"\0tensors")
    (tmp_path / "notes.txt").write_text("GO elsewhere")
    for named in (tmp_path / "model.one", tmp_path):
        plan = explain(environment, named, LLMK__PLUGIN__GOOD__COLOR="green")
        assert (plan["model"], plan["architecture"]) == ("good.model", "GoodForCausalLM")
    done = environment.llmk("explain", str(tmp_path / "notes.txt"), "--on", "good/g1", cwd=tmp_path)
    assert done.returncode != 0
    assert "notes.txt is a file in no format of checkpoints that is installed (good)" in done.stderr
    (tmp_path / "model.one").write_bytes(b"GOOD[")
    done = environment.llmk("explain", str(tmp_path / "model.one"), "--on", "good/g1", cwd=tmp_path)
    assert done.returncode != 0
    assert "good.format of fixture-good 1.0 can't read" in done.stderr


@pytest.mark.hook("llmk_models")
def test_model_describes_the_checkpoint(environment: Environment, checkpoint: Path) -> None:
    plan = explain(environment, checkpoint)
    assert (plan["model"], plan["architecture"]) == ("good.model", "GoodForCausalLM")
    assert plan["model_implementation"] == "fixture_good.model:GoodForCausalLM"


@pytest.mark.parametrize(
    ("kind", "id"),
    [
        pytest.param("reasoning", "good.reasoning", id="llmk_reasoning_parsers"),
        pytest.param("tool", "good.tools", id="llmk_tool_parsers"),
    ],
)
@pytest.mark.hook("llmk_reasoning_parsers")
@pytest.mark.hook("llmk_tool_parsers")
def test_parser_claims_its_dialect(environment: Environment, checkpoint: Path, kind: str, id: str) -> None:
    expression = f"choose_parser(registry, {kind!r}, config, checkpoint)[0].spec.id"
    assert ask(environment, checkpoint, expression) == id
    (checkpoint / "chat_template.jinja").write_text("plain")
    assert ask(environment, checkpoint, f"choose_parser(registry, {kind!r}, config, checkpoint)[0]") is None


@pytest.mark.hook("llmk_io_processors")
def test_io_processor_is_registered(environment: Environment, checkpoint: Path) -> None:
    assert ask(environment, checkpoint, "[r.spec.id for r in registry.of(IOProcessorSpec)]") == ["good.io"]


@pytest.mark.hook("llmk_scheduling_policies")
def test_policy_is_used_where_it_is_named(environment: Environment, checkpoint: Path) -> None:
    plan = explain(environment, checkpoint)
    assert chosen(plan, "policy", "scheduler") == "core.built_in"
    assert rejection_codes(plan, "policy", "scheduler", "good.policy") == ["not_chosen"]
    for name in ("good.policy", "good-policy"):
        plan = explain(environment, checkpoint, "--select.policy.use", name)
        assert chosen(plan, "policy", "scheduler") == "good.policy"
        assert ["fixture-good", "1.0"] in plan["wheels"]


@pytest.mark.hook("llmk_routers")
def test_router_is_used_where_it_is_named(environment: Environment, checkpoint: Path) -> None:
    assert not [one for one in explain(environment, checkpoint)["choices"] if one["site"] == "replicas"]
    two = ("--replicas", "2")
    assert chosen(explain(environment, checkpoint, *two), "router", "replicas") == "core.built_in"
    for name in ("good.router", "good-router"):
        plan = explain(environment, checkpoint, *two, "--select.router.use", name)
        assert chosen(plan, "router", "replicas") == "good.router"


@pytest.mark.hook("llmk_speculators")
def test_speculator_is_used_where_it_is_named(environment: Environment, checkpoint: Path) -> None:
    assert not [one for one in explain(environment, checkpoint)["choices"] if one["site"] == "speculation"]
    for name in ("good.drafts", "good-drafts"):
        plan = explain(environment, checkpoint, "--speculation.use", name)
        assert chosen(plan, "device_speculator", "speculation") == "good.drafts"


@pytest.mark.hook("llmk_logits_processors")
def test_logits_processor_is_registered(environment: Environment, checkpoint: Path) -> None:
    expression = "[r.spec.id for r in registry.of(LogitsProcessorSpec)]"
    assert ask(environment, checkpoint, expression) == ["good.ladder"]


@pytest.mark.hook("llmk_grammars")
def test_grammar_compiler_is_registered_and_explained(environment: Environment, checkpoint: Path) -> None:
    assert ask(environment, checkpoint, "[r.spec.id for r in registry.of(GrammarSpec)]") == ["good.grammar"]
    done = environment.llmk("explain", str(checkpoint), "--on", "good/g1", cwd=checkpoint)
    assert "grammars: regex by good.grammar of fixture-good 1.0 (only candidate)" in done.stdout


@pytest.mark.hook("llmk_routes")
def test_route_is_registered(environment: Environment, checkpoint: Path) -> None:
    expression = "[(r.spec.method, r.spec.path) for r in registry.of(RouteSpec)]"
    assert ask(environment, checkpoint, expression) == [["POST", "/good/echo"]]


@pytest.mark.hook("llmk_pages")
def test_page_is_registered_with_its_files(environment: Environment, checkpoint: Path) -> None:
    found = ask(environment, checkpoint, "[(page.spec.path, sorted(page.files)) for page in load_pages(registry)]")
    assert ["/good", ["index.html"]] in found


@pytest.mark.hook("llmk_stat_loggers")
def test_stat_logger_is_registered(environment: Environment, checkpoint: Path) -> None:
    expression = "[r.spec.id for r in registry.of(StatLoggerSpec)]"
    assert ask(environment, checkpoint, expression) == ["good.stats"]


@pytest.mark.hook("llmk_commands")
def test_commands_run_and_a_broken_one_says_why(environment: Environment, checkpoint: Path) -> None:
    done = environment.llmk("greet", "you", "--loud", cwd=checkpoint)
    assert (done.returncode, done.stdout) == (3, "HELLO YOU\n")
    listed = environment.llmk("plugins", cwd=checkpoint)
    assert listed.returncode == 0
    assert "fixture-good" in listed.stdout
    broken = environment.llmk("plugins", "shatter", "--now", cwd=checkpoint)
    assert broken.returncode
    assert "fixture_good.nowhere" in broken.stderr


@pytest.mark.hook("llmk_tuned_configs")
def test_shipped_measurements_decide_on_their_device(environment: Environment, checkpoint: Path) -> None:
    flags = ("--dtype", "bfloat16")
    pieces = choice(explain(environment, checkpoint, *flags), "linear", "up")["pieces"]
    assert [(piece["start"], piece["id"], piece["why"]) for piece in pieces] == [
        (1, "reference.linear", "measured 0.50x of good.linear at 4 tokens, 2026-11-21"),
        (5, "good.linear", "measured 0.33x of reference.linear at 64 tokens, 2026-11-21"),
    ]
    without = explain(environment, checkpoint, *flags, "--platform.measurements", "none")
    assert chosen(without, "linear", "up") == "good.linear"


@pytest.mark.hook("llmk_config_defaults")
def test_default_is_taken_and_remembered(environment: Environment, checkpoint: Path) -> None:
    def shown(*flags: str) -> dict[str, Any]:
        done = environment.llmk("config", "show", *flags, "--json", cwd=checkpoint, FIXTURE_GOOD_DEVICE="1")
        assert done.returncode == 0, done.stderr
        entry: dict[str, Any] = json.loads(done.stdout)["cache.num_blocks"]
        return entry

    advised = shown()
    assert (advised["value"], advised["source"]) == (1000, "plugin")
    assert advised["detail"] == "good: the fixture likes 1000 on good/g1"
    assert (shown("--cache.num-blocks", "7")["value"], shown("--cache.num-blocks", "7")["source"]) == (7, "flag")


@pytest.mark.hook("llmk_check_config")
def test_problem_of_the_final_configuration_is_fatal(environment: Environment, checkpoint: Path) -> None:
    command = ["explain", str(checkpoint), "--on", "good/g1", "--cache.block-size", "24"]
    done = environment.llmk(*command, cwd=checkpoint)
    assert done.returncode == 2
    for part in ("cache.block_size", "--cache.block-size", "dislikes 24 on good/g1", "use 16"):
        assert part in done.stderr


@pytest.mark.hook("llmk_config_schema")
def test_own_section_is_validated(environment: Environment, checkpoint: Path) -> None:
    explain(environment, checkpoint, LLMK__PLUGIN__GOOD__COLOR="green")
    for variable, value in (("LLMK__PLUGIN__GOOD__COLOR", "blue"), ("LLMK__PLUGIN__GOOD__COLOUR", "green")):
        done = environment.llmk("explain", str(checkpoint), "--on", "good/g1", cwd=checkpoint, **{variable: value})
        assert done.returncode == 2
        assert variable in done.stderr
        assert "color" in done.stderr


@pytest.mark.hook("llmk_plan_resolved")
def test_plan_is_told(environment: Environment, checkpoint: Path, tmp_path: Path) -> None:
    told = tmp_path / "plan.json"
    explain(environment, checkpoint, FIXTURE_PLAN_FILE=str(told))
    assert json.loads(told.read_text()) == {"model": "good.model", "platform": "good/g1"}


@pytest.mark.hook("llmk_demo_checkpoint")
def test_demo_checkpoint_is_served_where_no_model_is_named(environment: Environment, checkpoint: Path) -> None:
    without = environment.llmk("explain", "--on", "good/g1", cwd=checkpoint)
    assert without.returncode == 5
    assert "no installed wheel contains a demo model" in without.stderr
    done = environment.llmk("explain", "--on", "good/g1", "--json", cwd=checkpoint, FIXTURE_DEMO=str(checkpoint))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["model"] == "good.model"


def test_nothing_that_is_chosen_is_imported(environment: Environment, checkpoint: Path) -> None:
    """The fixture names modules that raise: explaining imports none, and loading says what is wrong."""
    explain(environment, checkpoint)
    location, wheel = "fixture_good.kernels:attention", "fixture-good 1.0"
    code = f"from llmk.kernel.loader import load_object; load_object({location!r}, plugin={wheel!r})"
    done = environment.run(code, cwd=checkpoint)
    assert done.returncode != 0
    assert f"{location} of {wheel} can't be loaded" in done.stderr


@pytest.mark.hook("llmk_launchers")
def test_launcher_arrives(environment: Environment, checkpoint: Path) -> None:
    """It is chosen where it is named, for more ranks than this machine has devices, and says why it can't."""
    named = ("--select.launcher.use", "good-launcher")
    plan = explain(environment, checkpoint, *named)
    assert chosen(plan, "launcher", "launcher") == "good.launcher"
    both = environment.llmk(
        "explain", str(checkpoint), "--on", "good/g1", *named, "--select.executor.use", "good-executor", cwd=checkpoint
    )
    assert "good.executor runs the steps itself" in both.stderr
    unnamed = ("explain", str(checkpoint), "--on", "good/g1", "--select.launcher.use", "ray")
    unknown = environment.llmk(*unnamed, cwd=checkpoint)
    assert "[select.launcher] names 'ray', which is not installed" in unknown.stderr
    assert "pip install llmk-ray" in unknown.stderr


@pytest.mark.hook("llmk_executors")
def test_executor_arrives(environment: Environment, checkpoint: Path) -> None:
    """It computes every site of the plan, by its own kernels where it has any, and what it does not know is refused by
    name."""
    plan = explain(environment, checkpoint, "--select.executor.use", "good-executor")
    assert chosen(plan, "executor", "executor") == "good.executor"
    sites = {one["kind"]: one for one in plan["choices"]}
    assert (sites["linear"]["pieces"][0]["id"], sites["linear"]["pieces"][0]["why"]) == ("good.executor", "by hand")
    assert {out["id"] for out in sites["attention"]["rejected"]} == {"good.crawl"}, "the engine's are no candidates"
    assert chosen(plan, "attention", "attention") == "good.walk"
    pinned = explain(
        environment, checkpoint, "--select.executor.use", "good-executor", "--select.attention.use", "good.crawl"
    )
    assert chosen(pinned, "attention", "attention") == "good.crawl"
    flags = ("--on", "good/g1", "--select.executor.use", "good.executor", "--model.load-format", "dummy")
    refused = environment.llmk("explain", str(checkpoint), *flags, cwd=checkpoint)
    assert refused.returncode != 0
    assert "an executor that does not know dummy_weights" in refused.stderr
