"""Finding the command, turning errors into one message, and staying quick."""

from __future__ import annotations

import importlib
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from llmk import __version__
from llmk.cli import main as module
from llmk.cli.main import COMMANDS, Parser, main
from llmk.config.flags import add_flags, collect

BARE = "import pydantic, importlib.metadata; pydantic.BaseModel, list(importlib.metadata.entry_points())"
RUN = "import sys; from llmk.cli.main import main; sys.exit(main())"


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    for name, line in COMMANDS.items():
        assert name in text
        assert line in text


def test_no_command_shows_help_and_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "usage: llmk" in capsys.readouterr().out
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"llmk {__version__}\n"


def test_unknown_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["sreve"])
    assert stop.value.code == 2
    assert "invalid choice: 'sreve'" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert callable(importlib.import_module(f"llmk.cli.{name}").run)
    with pytest.raises(SystemExit) as stop:
        main([name, "--help"])
    assert stop.value.code == 0
    assert f"usage: llmk {name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("serve", "llmk serve [OPTION ...] [MODEL]"),
        ("run", "llmk run [OPTION ...] [MODEL] PROMPT"),
        ("bench trace", "llmk bench trace --output FILE [OPTION ...] [MODEL]"),
        ("plugins", "llmk plugins [OPTION ...] [ACTION] ..."),
        ("plugins check", "llmk plugins check [OPTION ...] DIST [DIST ...]"),
        ("config show", "llmk config show [OPTION ...]"),
    ],
)
def test_usage_is_one_line(arguments: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*arguments.split(), "--help"])
    assert capsys.readouterr().out.split("\n\n")[0] == f"usage: {line}"


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [("srve", "serve"), ("serve --prt 1", "--port"), ("serve --dtype flot16", "float16"), ("config shw", "show")],
)
def test_misspelt_words_are_corrected(arguments: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(arguments.split())
    assert f"did you mean {meant}?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["hi"], ["hi"]),
        (["demo", "hi"], ["demo", "hi"]),
        (["demo", "--max-tokens", "3", "hi"], ["demo", "hi"]),
        (["--max-tokens", "3", "hi"], ["hi"]),
        (["hi", "--max-tokens", "3"], ["hi"]),
        (["--", "--hi"], ["--hi"]),
    ],
)
def test_run_takes_a_prompt_and_perhaps_a_model_first(
    arguments: list[str], words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []
    run: Any = importlib.import_module("llmk.cli.run")
    monkeypatch.setattr(run, "run", lambda args: seen.append(args.words) or 0)
    assert main(["run", *arguments]) == 0
    assert seen == [words]


def test_run_says_what_is_missing(llmk: Any, model: str) -> None:
    ran = llmk("run", model)
    assert (ran.code, ran.out) == (2, "")
    assert f'hint: llmk run {model} "PROMPT"' in ran.err
    ran = llmk("run", "what", "is", "this")
    assert (ran.code, ran.out) == (2, "")
    assert 'hint: quote the prompt: llmk run "what is this"' in ran.err


def test_errors_are_one_message_and_the_classes_exit_code(llmk: Any, model: str) -> None:
    for arguments, code, said in (
        (("explain", "absent"), 5, "there is no checkpoint folder absent"),
        (("explain", model, "--cache.block-size", "x"), 2, "cache.block_size = 'x'"),
        (("explain", model, "--set", "plugins.require=absent"), 3, "plugin 'absent' is required, but not installed"),
        (("explain", model, "--select.linear.use", "a.b"), 4, "'a.b'"),
    ):
        ran = llmk(*arguments)
        assert (ran.code, ran.out) == (code, "")
        assert ran.err.startswith("llmk: ")
        assert said in ran.err
        assert "Traceback" not in ran.err


@pytest.mark.parametrize("arguments", [("--debug", "explain", "absent"), ("explain", "absent", "--debug")])
def test_debug_shows_the_traceback(llmk: Any, arguments: tuple[str, ...]) -> None:
    ran = llmk(*arguments)
    assert ran.code == 5
    assert "Traceback" in ran.err
    assert ran.err.rstrip().splitlines()[-2].startswith("llmk: there is no checkpoint folder absent")


def patched(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(arguments: list[str]) -> int:
        raise error

    monkeypatch.setattr(module, "_run", fail)


def test_unexpected_error_is_reported_without_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    patched(monkeypatch, ZeroDivisionError("division by zero"))
    assert main(["plugins"]) == 1
    text = capsys.readouterr().err
    assert text.startswith("llmk: internal error: ZeroDivisionError: division by zero; run it again with --debug")
    assert main(["--debug", "plugins"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_interrupt_has_the_shells_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    patched(monkeypatch, KeyboardInterrupt())
    assert main(["plugins"]) == 130


def test_reader_that_goes_away_is_no_error() -> None:
    command = [sys.executable, "-c", RUN, "config", "schema"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    _, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (141, b"")


def seconds(program: str, *arguments: str) -> float:
    """Processor time of a program, the least of several runs: the wall time of an idle machine, also on a busy one."""

    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", program, *arguments], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime

    return min(once() for _ in range(3))


def test_help_and_plugins_are_quick() -> None:
    """Compared with the libraries that listing plugins needs at least, since machines differ. Where this was written,
    they take 0.1, 0.5 and 1.4 s with 20 plugins on a busy machine, and the libraries 0.24."""
    bare = seconds(BARE)
    assert seconds(RUN, "--version") < bare
    assert seconds(RUN, "--help") < 8 * bare
    assert seconds(RUN, "plugins") < 8 * bare


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize(("full", "code"), [("stdout", 1), ("stderr", 5)])
def test_a_full_disk_has_its_own_error(full: str, code: int) -> None:
    with open("/dev/full", "w") as file:
        streams: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | {full: file}
        arguments = ["config", "schema"] if full == "stdout" else ["explain", "absent"]
        done = subprocess.run([sys.executable, "-c", RUN, *arguments], **streams, text=True)
    assert done.returncode == code
    if full == "stdout":
        hint = "  hint: free some space there, or name another place\n"
        assert done.stderr == f"llmk: the output can't be used: No space left on device\n{hint}"


def test_options_of_plugins_are_assignments() -> None:
    parser = Parser()
    add_flags(parser, ["model"])
    given = ["--plugin.tpu.emulate", "--plugin.acme.levels=a=b", "--set", "plugin.acme.more=1"]
    values = {"plugin.tpu.emulate": "true", "plugin.acme.levels": "a=b", "plugin.acme.more": "1"}
    assert collect(parser.parse_args(given)) == values
