"""Without a backend's wheel, llmk says what is missing and how to get it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from scratch import Environment


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
