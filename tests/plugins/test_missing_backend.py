"""Without a backend's wheel, llmk says what is missing and how to get it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from scratch import Environment

from llmk.api import PluginError

pytestmark = pytest.mark.slow_file


def test_uninstalling_the_backend_leaves_a_doctor_that_explains(
    make_environment: Callable[..., Environment], wheels: dict[str, Path], tmp_path: Path
) -> None:
    environment = make_environment(*wheels.values())
    healthy = environment.llmk("doctor", cwd=tmp_path)
    assert healthy.returncode == 0, healthy.stdout + healthy.stderr

    environment.uninstall("llmk-backends-cpu")
    done = environment.llmk("doctor", cwd=tmp_path)
    assert done.returncode != 0
    assert "pip install llmk-backends-cpu" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr

    explained = environment.llmk("explain", cwd=tmp_path)
    assert explained.returncode == 4
    assert "pip install llmk-backends-cpu" in explained.stderr
    served = environment.llmk("serve", "--port", "0", cwd=tmp_path)
    assert served.returncode == 4
    assert "pip install llmk-backends-cpu" in served.stderr

    environment.install(wheels["backends-cpu"])
    assert environment.llmk("doctor", cwd=tmp_path).returncode == 0


def test_without_the_models_the_error_names_their_wheel(
    make_environment: Callable[..., Environment], wheels: dict[str, Path], tmp_path: Path
) -> None:
    environment = make_environment(wheels["core"], wheels["backends-cpu"])
    done = environment.llmk("explain", cwd=tmp_path)
    assert done.returncode == 5
    assert "pip install llmk-models" in done.stderr
    (tmp_path / "config.json").write_text('{"architectures": ["Qwen3ForCausalLM"]}')
    named = environment.llmk("explain", str(tmp_path), cwd=tmp_path)
    assert named.returncode == 5
    assert "Qwen3ForCausalLM" in named.stderr
    assert "pip install llmk-models" in named.stderr


def test_what_is_missing_is_named_with_its_wheel(
    make_environment: Callable[..., Environment], wheels: dict[str, Path], tmp_path: Path
) -> None:
    environment = make_environment(wheels["core"], wheels["models"], wheels["backends-cpu"])
    for option, named, wheel in (
        ("--select.policy.use", "fair", "llmk-policies"),
        ("--select.policy.use", "policies.fair", "llmk-policies"),
        ("--model.quantization", "fp8", "llmk-quantization"),
        ("--model.quantization", "int8", "llmk-int8"),
        ("--select.linear.use", "triton.linear_skinny", "llmk-triton"),
        ("--platform.use", "cuda", "llmk-backends-cuda"),
        ("--platform.use", "rocm", "llmk-backends-rocm"),
        ("--platform.use", "xpu", "llmk-backends-xpu"),
        ("--plugins.require", "statsd", "llmk-statsd"),
        ("--speculation.use", "suffix_tree", "llmk-speculators"),
    ):
        done = environment.llmk("explain", option, named, cwd=tmp_path)
        assert done.returncode, done.stdout
        assert f"hint: {named} is in {wheel}: pip install {wheel}" in done.stderr
    done = environment.llmk("explain", "--on", "rocm/gfx942", cwd=tmp_path)
    assert "hint: rocm is in llmk-backends-rocm: pip install llmk-backends-rocm" in done.stderr
    done = environment.llmk("explain", "--select.attention.prefer", "triton.attention", cwd=tmp_path)
    assert "triton.attention is in llmk-triton: pip install llmk-triton" in done.stdout + done.stderr
    done = environment.llmk("run", "hi", "--select.tool_parser.use", "hermes", cwd=tmp_path)
    assert "hint: hermes is in llmk-parsers: pip install llmk-parsers" in done.stderr
    environment.install(wheels["plugins-policies"])
    done = environment.llmk("explain", "--select.policy.use", "fare", cwd=tmp_path)
    assert "pip install" not in done.stderr


def test_an_action_of_a_wheel_that_is_not_installed_names_it(
    make_environment: Callable[..., Environment], wheels: dict[str, Path], tmp_path: Path
) -> None:
    environment = make_environment(wheels["core"])
    for action in ("check", "new"):
        done = environment.llmk("plugins", action, "llmk-acme", "--kind", "op", cwd=tmp_path)
        assert done.returncode == PluginError.exit_code
        assert f"llmk plugins {action} is not installed" in done.stderr
        assert "pip install llmk-testing" in done.stderr
