"""The commands that need no torch: plugins, explain, config and doctor."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from wheelhouse import Wheelhouse, kernels

from llmk.cli.commands.summaries import PLUGIN_SECONDS, SECONDS
from llmk.cli.main import main
from llmk.config import Config

LINEAR = 'id="{0}.linear", tier=Tier.VENDOR'


def states(text: str) -> dict[str, str]:
    return {plugin["name"]: plugin["state"] for plugin in json.loads(text)}


def test_plugins_lists_states_and_reasons(llmk: Any, house: Wheelhouse) -> None:
    house.install("bad", "raise RuntimeError('no such chip')")
    override = LINEAR.format("over") + ', overrides="reference.linear"'
    house.install("over", kernels("over", "linear_kernels", override))
    ran = llmk("plugins")
    assert ran.code == 0
    for part in ("box-wheel 1.0", "active", "broken", "RuntimeError: no such chip", "allow_overrides"):
        assert part in ran.out
    found = states(llmk("plugins", "--json").out)
    assert (found["box"], found["bad"], found["reference"]) == ("active", "broken", "active")
    (bad,) = (plugin for plugin in json.loads(llmk("plugins", "--json").out) if plugin["name"] == "bad")
    assert bad["reasons"][0]["code"] == "import_failed"
    assert "no such chip" in bad["traceback"]
    assert states(llmk("plugins", "--plugins.only", "toy", "--json").out)["box"] == "blocked"


def test_explain_shows_the_plan_and_what_could_serve(llmk: Any, house: Wheelhouse, model: str) -> None:
    house.install("fast", kernels("fast", "linear_kernels", LINEAR.format("fast")))
    ran = llmk("explain", model)
    assert ran.code == 0
    assert "platform  box/b2 (box.box)" in ran.out
    assert "model     ToyForCausalLM by toy.toy, bfloat16" in ran.out
    assert (
        'could also serve: fast.linear (fast-wheel) at up; to choose it: [select.linear] prefer = ["fast.linear"]'
        in (ran.out)
    )
    assert "rejected" not in ran.out
    assert "tool parser: none (no tool parser claims this checkpoint's dialect (installed: " in ran.out
    verbose = llmk("explain", model, "--verbose").out
    assert "rejected" in verbose
    assert "  linear up\n" in verbose
    assert "    fast.linear (fast-wheel)\n      - not vouched" in verbose
    data = json.loads(llmk("explain", model, "--on", "box/b1", "--json").out)
    assert data["platform"]["arch"] == "b1"
    assert len(data["fingerprint"]) == 64
    assert data["parsers"]["reasoning"]["id"] is None


def test_config_shows_values_and_who_set_them(llmk: Any, tmp_path: Path) -> None:
    (tmp_path / "llmk.toml").write_text("[cache]\nblock_size = 32\n")
    plain = llmk("config", "show", "--server.port", "9")
    assert plain.code == 0
    assert plain.err.startswith("plugins' defaults for a model are not shown: no model is named")
    assert "cache.block_size = 32" in plain.out
    shown = llmk("config", "show", "--origin", "--server.port", "9").out
    rows = [line.split() for line in shown.splitlines()]
    assert ["cache.block_size", "32", "file", "llmk.toml:2"] in rows
    assert ["server.port", "9", "flag", "--server.port"] in rows
    assert ["server.host", '"127.0.0.1"', "default"] in rows
    data = json.loads(llmk("config", "show", "--json").out)
    assert data["cache.block_size"] == {"value": 32, "source": "file", "detail": "llmk.toml:2"}


def test_config_hides_keys(llmk: Any) -> None:
    for format in ("--origin", "--json"):
        out = llmk("config", "show", format, "--api-key", "s3cret").out
        assert "s3cret" not in out
        assert "(hidden)" in out


def test_config_shows_plugins_defaults_where_a_platform_is_usable(llmk: Any, house: Wheelhouse) -> None:
    advice = "@hookimpl\ndef llmk_config_defaults():\n    return [Default('cache.num_blocks', 40, 'it fits')]\n"
    house.install("advice", advice)
    data = json.loads(llmk("config", "show", "--json").out)
    assert data["cache.num_blocks"] == {"value": 40, "source": "plugin", "detail": "advice: it fits"}
    ran = llmk("config", "show", "--json", "--plugins.only", "advice")
    assert json.loads(ran.out)["cache.num_blocks"]["source"] == "default"
    assert "plugins' defaults are not shown: no platform is installed" in ran.err


def test_config_schema_lists_every_key(llmk: Any) -> None:
    text = llmk("config", "schema").out
    for section, field in Config.model_fields.items():
        assert field.annotation is not None
        assert f"{section}" in text
    assert "cache.block_size" in text
    assert "Tokens per block." in text
    assert json.loads(llmk("config", "schema", "--json").out)["title"] == "Config"


def demo(house: Wheelhouse, model: str, tmp_path: Path) -> None:
    code = f"@hookimpl\ndef llmk_demo_checkpoint():\n    return {str(tmp_path / model)!r}\n"
    house.install("demo", code)


def test_doctor_finds_nothing_wrong(llmk: Any, house: Wheelhouse, model: str, tmp_path: Path) -> None:
    demo(house, model, tmp_path)
    (tmp_path / model / "model.safetensors").write_bytes(b"x")
    ran = llmk("doctor")
    assert ran.code == 0, ran.out
    for part in ("platform box (box-wheel 1.0) is usable: box/b2", "architectures: ToyForCausalLM", "demo model: Toy"):
        assert part in ran.out
    assert "the demo model can be planned: ToyForCausalLM on box/b2 in bfloat16" in ran.out
    assert ran.out.rstrip().endswith("verdict: ready to serve")


@pytest.mark.parametrize(
    ("rules", "parts"),
    [
        (("--plugins.only", "toy,demo"), ("no platform is usable here", "pip install llmk-backends-cpu")),
        (("--plugins.only", "box"), ("no model family is registered", "pip install llmk-models")),
        (("--select.linear.use", "a.b"), ("can't be planned", "'a.b'")),
    ],
)
def test_doctor_says_what_is_missing(
    llmk: Any, house: Wheelhouse, model: str, tmp_path: Path, rules: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    demo(house, model, tmp_path)
    (tmp_path / model / "model.safetensors").write_bytes(b"x")
    ran = llmk("doctor", *rules)
    assert ran.code == 1
    for part in (*parts, "verdict: 1 problem"):
        assert part in ran.out


def test_doctor_reports_broken_plugins_and_missing_weights(
    llmk: Any, house: Wheelhouse, model: str, tmp_path: Path
) -> None:
    demo(house, model, tmp_path)
    house.install("bad", "raise RuntimeError('no such chip')")
    ran = llmk("doctor")
    assert ran.code == 1
    assert "plugin bad (bad-wheel 1.0) is broken: import failed" in ran.out
    assert "lacks weights" in ran.out
    assert "verdict: 2 problems" in ran.out


def test_doctor_counts_devices_and_names_those_that_are_not_used(
    llmk: Any, house: Wheelhouse, model: str, tmp_path: Path
) -> None:
    module = house.folder / "plug_box.py"
    text = module.read_text()
    many = text.replace('arch="b2", ', 'arch="b2", device_name="Chip", num_devices=8, memory_bytes=64 << 30, ')
    module.write_text(many.replace("Probe(OK, BOX)", 'Probe(OK, BOX, unused=("Old", "Old", "Small"))'))
    ran = llmk("doctor", model)
    assert "platform box (box-wheel 1.0) is usable: box/b2, 8 x Chip, 64.0 GiB each" in ran.out
    assert "runs on one kind of device; not used: 2 x Old, Small" in ran.out
    assert "make only those visible that are to serve" in ran.out


def test_doctor_mentions_what_could_serve(llmk: Any, house: Wheelhouse, model: str, tmp_path: Path) -> None:
    house.install("fast", kernels("fast", "linear_kernels", LINEAR.format("fast")))
    ran = llmk("doctor", model)
    assert ran.code == 0, ran.out
    assert "could also serve: fast.linear" in ran.out
    assert "no model is named, and no installed wheel contains a demo model" in ran.out


def test_a_mistyped_flag_is_answered_with_the_one_that_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", "demo", "hi", "--cache.blok_size", "3"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        "llmk: unrecognized arguments: --cache.blok_size 3\n  hint: did you mean --cache.block-size?\n"
    )


def test_tune_refuses_to_measure_without_a_place_to_save(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "--platform.measurements", "none"]) == 2
    assert "nothing can be saved" in capsys.readouterr().err


GREET = """
from llmk.api import CommandSpec

@hookimpl
def llmk_commands():
    absent = {"implementation": "nowhere_at_all:Greet"}
    return [
        CommandSpec(id="polite.greet", name="greet", summary="say hello, 100% of it", **absent),
        CommandSpec(id="polite.leave", name="leave", summary="say goodbye", implementation="plug_polite:Leave"),
    ]

class Leave:
    def add_arguments(self, parser):
        pass

    def run(self, args):
        print("Goodbye")
        return 0
"""


def test_help_lists_commands_of_plugins(llmk: Any, house: Wheelhouse) -> None:
    house.install("polite", GREET)
    ran = llmk()
    assert (ran.code, ran.err) == (0, "")
    assert "    greet     say hello, 100% of it\n" in ran.out
    assert "    leave     say goodbye\n" in ran.out
    left = llmk("leave")
    assert (left.code, left.out) == (0, "Goodbye\n")  # it needs no other command
    assert "nowhere_at_all" in llmk("greet").err


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("raise RuntimeError('no such chip')", "RuntimeError: no such chip"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("import time; time.sleep(60)", "not finished after 2 s"),
    ],
)
def test_help_says_which_plugin_is_left_out(llmk: Any, house: Wheelhouse, code: str, why: str) -> None:
    house.install("polite", GREET)
    house.install("bad", code)
    ran = llmk()
    assert ran.code == 0
    assert "    leave     say goodbye\n" in ran.out
    assert "bad-wheel 1.0" in ran.err
    assert why in ran.err
    assert 'disable = ["bad"]' in ran.err


NOISY = """
import os, subprocess, sys, threading, time
os.write(1, b'noise')
print('noise', file=sys.__stdout__, flush=True)
threading.Thread(target=time.sleep, args=(60,)).start()
"""


def test_what_plugins_print_and_start_does_not_disturb_the_help(llmk: Any, house: Wheelhouse) -> None:
    house.install("polite", NOISY + GREET)
    started = time.monotonic()
    ran = llmk()
    assert time.monotonic() - started < SECONDS
    assert (ran.code, ran.err) == (0, "")
    assert "    leave     say goodbye\n" in ran.out
    assert "noise" not in ran.out


DEAF = "import signal, time; signal.signal(signal.SIGALRM, signal.SIG_IGN); time.sleep(60)"
"""Is not interrupted by the watchdog."""


@pytest.mark.parametrize(
    ("code", "how"), [("import os; os._exit(3)", "exit code 3"), (DEAF, "exit code -9|not finished after 10 s")]
)
def test_help_is_shown_where_a_plugin_ends_the_process(llmk: Any, house: Wheelhouse, code: str, how: str) -> None:
    house.install("bad", code)
    ran = llmk()
    assert ran.code == 0
    assert "serve a model through" in ran.out
    assert re.search(how, ran.err)
    assert "the import of plugin 'bad' (bad-wheel 1.0)" in ran.err
    assert 'disable = ["bad"]' in ran.err


def test_help_is_shown_where_plugins_take_too_long_together(llmk: Any, house: Wheelhouse) -> None:
    for number in range(round(SECONDS / PLUGIN_SECONDS) + 1):
        house.install(f"slow{number}", "import time; time.sleep(60)")
    ran = llmk()
    assert ran.code == 0
    assert "serve a model through" in ran.out
    assert "was not finished after 10 s" in ran.err
    assert "the import of plugin 'slow" in ran.err


def test_help_is_shown_where_python_can_not_be_started(llmk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHOME", "/nowhere")
    ran = llmk()
    assert ran.code == 0
    assert "serve a model through" in ran.out
    assert "ended with exit code 1\n  hint: llmk plugins" in ran.err


def test_help_is_shown_where_plugins_can_not_be_listed(llmk: Any, house: Wheelhouse, tmp_path: Path) -> None:
    house.install("polite", GREET)
    house.install("rude", GREET.replace("polite", "rude"))
    ran = llmk()
    assert ran.code == 0
    assert "serve a model through" in ran.out
    assert "both provide the command llmk greet" in ran.err
    (tmp_path / "llmk.toml").write_text("[server\n")
    ran = llmk()
    assert ran.code == 0
    assert "serve a model through" in ran.out
    assert "may be missing here: " in ran.err
