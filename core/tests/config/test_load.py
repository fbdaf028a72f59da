"""Sources, their order, and what each value remembers of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llmk.api import ConfigError, Default
from llmk.config import Settings, load

FILE = """\
# A comment, and a table whose values span lines.
[cache]
block_size = 32  # tokens

[plugins]
only = [
    "a",  # the first
    "b",
]
trust = ["x"]

[select.op]
use = { "add_rms_norm" = "x.y", rope = "z.q" }

[plugin.acme]
mode = "fast"
nested.depth = 2
text = '''
[not.a.header]
key = 1
'''
after = true
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "llmk.toml").write_text(FILE)
    return tmp_path


def load_here(folder: Path, flags: dict[str, Any] | None = None, **environ: str) -> Settings:
    return load(flags, environ=environ, cwd=folder)


def origin(settings: Settings, path: str) -> tuple[str, str]:
    found = settings.origin(path)
    return found.source, found.detail


def test_defaults_alone(tmp_path: Path) -> None:
    settings = load_here(tmp_path)
    assert settings.config.cache.block_size == 16
    assert origin(settings, "cache.block_size") == ("default", "")
    assert {who.source for _, _, who in settings.rows()} == {"default"}


def test_every_source_wins_over_those_below_it(folder: Path) -> None:
    path, flags = "cache.block_size", {"cache.block_size": "8"}
    default = Default(path, 64, "it suits the chip")
    plain = load(environ={}, cwd=folder / "elsewhere")
    steps = [
        (plain, 16, ("default", "")),
        (plain.with_defaults([("acme", default)]), 64, ("plugin", "acme: it suits the chip")),
        (
            plain.with_defaults([("acme", default)]).with_checkpoint({path: 48}, "its config.json"),
            48,
            ("checkpoint", "its config.json"),
        ),
        (load_here(folder).with_checkpoint({path: 48}, "why"), 32, ("file", "llmk.toml:3")),
        (load_here(folder, LLMK__CACHE__BLOCK_SIZE="4"), 4, ("environment", "LLMK__CACHE__BLOCK_SIZE")),
        (load_here(folder, flags, LLMK__CACHE__BLOCK_SIZE="4"), 8, ("flag", "--cache.block-size")),
    ]
    for settings, value, who in steps:
        assert (settings.config.cache.block_size, origin(settings, path)) == (value, who)


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("cache.block_size", 3),
        ("plugins.only", 6),
        ("plugins.trust", 10),
        ("select.op.use.rope", 13),
        ("plugin.acme.mode", 16),
        ("plugin.acme.nested.depth", 17),
        ("plugin.acme.text", 18),
        ("plugin.acme.after", 22),
    ],
)
def test_every_value_of_a_file_knows_its_line(folder: Path, path: str, line: int) -> None:
    assert origin(load_here(folder), path) == ("file", f"llmk.toml:{line}")


def test_a_named_file_replaces_that_of_the_folder(folder: Path) -> None:
    other = folder / "other.toml"
    other.write_text("server.port = 9000\n")
    settings = load(file=other, environ={}, cwd=folder)
    assert (settings.config.server.port, settings.config.cache.block_size) == (9000, 16)
    assert origin(settings, "server.port") == ("file", "other.toml:1")


def test_lists_are_comma_separated_or_json(tmp_path: Path) -> None:
    settings = load_here(tmp_path, {"server.api_keys": ["a, b", "c"]}, LLMK__PLUGINS__ONLY='["x", "y,z"]')
    assert settings.config.server.api_keys == ("a", "b", "c")
    assert settings.config.plugins.only == ("x", "y,z")
    assert load_here(tmp_path, LLMK__PLUGINS__ONLY="").config.plugins.only == ()


def test_switches_and_numbers_are_read_from_text(tmp_path: Path) -> None:
    settings = load_here(tmp_path, LLMK__ENGINE__STRICT="true", LLMK__CACHE__MEMORY_GIB="1.5")
    assert settings.config.engine.strict is True
    assert settings.config.cache.memory_gib == 1.5


def test_sites_are_pinned_one_by_one_over_several_sources(folder: Path) -> None:
    settings = load_here(folder, {"select.op.use.layers.0.norm": "a.b"}, LLMK__SELECT__OP__USE__ROPE="q.r")
    assert settings.config.select.op.use == {"add_rms_norm": "x.y", "rope": "q.r", "layers.0.norm": "a.b"}
    assert origin(settings, "select.op.use.rope") == ("environment", "LLMK__SELECT__OP__USE__ROPE")
    assert origin(settings, "select.op.use.add_rms_norm") == ("file", "llmk.toml:13")


def test_one_pin_for_all_sites_replaces_a_table_below_it(folder: Path) -> None:
    assert load_here(folder, {"select.op.use": "a.b"}).config.select.op.use == "a.b"
    assert load_here(folder, {"select.op.use": '{"rope": "a.b"}'}).config.select.op.use == {
        "add_rms_norm": "x.y",
        "rope": "a.b",
    }


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("cache.blok_size", "did you mean 'cache.block_size'?"),
        ("cahce.block_size", "did you mean 'cache.block_size'?"),
        ("block_size", "did you mean 'cache.block_size'?"),
        ("cache.block_size.more", "did you mean 'cache.block_size'?"),
        ("zzz.qqq", "`llmk config schema` lists every key"),
    ],
)
def test_unknown_key_is_refused_with_the_nearest(tmp_path: Path, path: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_here(tmp_path, {path: "1"})
    assert f"unknown configuration key {path!r}" in caught.value.message
    assert hint in caught.value.hint


def test_unknown_keys_name_their_origin_all_at_once(tmp_path: Path) -> None:
    (tmp_path / "llmk.toml").write_text("[server]\nhots = '::'\nprot = 1\n")
    with pytest.raises(ConfigError, match=r"(?s)server\.hots.*llmk\.toml:2.*server\.prot.*llmk\.toml:3") as caught:
        load_here(tmp_path)
    assert "'server.host'" in caught.value.hint
    with pytest.raises(ConfigError, match="LLMK__CACHE__SIZE"):
        load_here(tmp_path / "elsewhere", LLMK__CACHE__SIZE="1")


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("cache.block_size", "many", "valid integer"),
        ("cache.block_size", "0", "greater than or equal to 1"),
        ("model.dtype", "int3", "'float32', 'bfloat16' or 'float16'"),
        ("engine.strict", "perhaps", "valid boolean"),
        ("server.api_keys", "[broken", "not valid JSON"),
        ("select.op.use", [1], "valid"),
    ],
)
def test_bad_value_names_path_value_and_origin(tmp_path: Path, path: str, value: object, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_here(tmp_path, {path: value})
    flag = "--" + path.replace("_", "-")
    for part in (path, said, flag):
        assert part in caught.value.message


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.toml can't be read"):
        load(file=tmp_path / "absent.toml", environ={})
    (tmp_path / "llmk.toml").write_text("[cache\n")
    with pytest.raises(ConfigError, match=r"llmk\.toml is not valid TOML: .*line 1"):
        load_here(tmp_path)


def test_rows_hold_every_value_once(folder: Path) -> None:
    rows = load_here(folder).rows()
    paths = [path for path, _, _ in rows]
    assert len(paths) == len(set(paths))
    values = {path: value for path, value, _ in rows}
    assert values["cache.block_size"] == 32
    assert values["plugin.acme.nested.depth"] == 2
    assert values["select.op.use.rope"] == "z.q"
    assert values["server.host"] == "127.0.0.1"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\xff\xfe[\x00m\x00", r"is not UTF-8 text: .* at byte 0"),
        (b"a = " + b"[" * 100_000, r"nested too deep|not valid TOML"),
    ],
)
def test_a_file_that_is_no_text_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / "llmk.toml").write_bytes(content)
    with pytest.raises(ConfigError, match=problem) as caught:
        load(file=tmp_path / "llmk.toml", environ={})
    assert str(tmp_path / "llmk.toml") in str(caught.value)


def test_a_block_is_not_longer_than_anything_could_use() -> None:
    with pytest.raises(ConfigError, match=r"cache\.block_size"):
        load({"cache.block_size": "100000"}, environ={})


def test_a_flag_nested_without_end_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"cache\.pins"):
        load({"cache.pins": "[" * 100_000}, environ={})
