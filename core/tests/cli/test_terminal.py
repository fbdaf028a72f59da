"""What commands print fits the terminal, and says first what people want to know."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

from llmk.api import Choice, Piece, Plan, PlatformFacts, Reason, Rejection
from llmk.cli.main import main
from llmk.cli.terminal import Style, width_of
from llmk.cli.tune_progress import TuneProgress
from llmk.planning.ranking import END
from llmk.planning.report import render_table
from llmk.planning.summary import render_advice, render_kernels, render_measured
from llmk.planning.tables import render_pairs, render_rows, wrapped

BOX = PlatformFacts(name="box", arch="b2", device_type="cpu", device_name="Box Two")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def piece(id: str, tier: str, why: str, start: int = 1, stop: int = END) -> Piece:
    return Piece(start, stop, id, f"{id.partition('.')[0]}-wheel", "1.0", "m:f", "", tier, why)


def linear(site: str, *pieces: Piece, rejected: tuple[Rejection, ...] = ()) -> Choice:
    return Choice("linear", site, "", None, pieces, rejected)


def op(site: str, *pieces: Piece) -> Choice:
    return Choice("op", site, site, None, pieces)


SMALL, LARGE = piece("fast.small", "native", "tier native", 1, 65), piece("fast.large", "native", "tier native", 65)
STRANGER = Rejection("s.linear", "s-wheel", (Reason("not_vouched", hint="[select.linear] prefer"),))
CHOICES = (
    linear("qkv", SMALL, LARGE, rejected=(STRANGER,)),
    linear("out", SMALL, LARGE),
    op("rms_norm", piece("fast.rms_norm", "native", "best score in tier native")),
    op("silu", piece("fast.silu", "native", "tier native")),
    op("embedding", piece("reference.embedding", "reference", "only candidate")),
    op("logprobs", piece("reference.logprobs", "reference", "tier reference")),
    op("sample", piece("fast.sample", "native", "only candidate")),
)
PLAN = Plan(BOX, "box.box", "m:P", "toy.toy", "m:T", "Toy", "bfloat16", CHOICES)


def test_what_had_no_choice_folds_into_one_line() -> None:
    *table, rest = "\n".join(render_kernels(PLAN, " toy", 80)).splitlines()
    assert [line.split() for line in table[2:]] == [
        ["fast.small", "qkv,", "out", "1-64", "native"],
        ["fast.large", "qkv,", "out", "65-", "native"],
        ["fast.*", "rms_norm,", "silu", "native"],
    ]
    assert rest == "3 other ops: reference, or the only candidate (llmk explain toy)"


def test_a_reference_of_the_users_choice_is_shown() -> None:
    pinned = op("logprobs", piece("reference.logprobs", "reference", "pinned by --select.op.use"))
    lines = "\n".join(render_kernels(replace(PLAN, choices=(pinned,)), ""))
    assert "pinned by --select.op.use" in lines
    assert "other ops" not in lines


def test_what_was_measured_is_counted() -> None:
    assert "llmk tune toy measures" in render_measured(PLAN, " toy")
    measured = linear("up", piece("fast.up", "native", "measured 0.50x of reference.linear, 2026-11-20"))
    found = render_measured(replace(PLAN, choices=(*CHOICES, measured)), "")
    assert found == "1 of 5 sites that have a choice, 2026-11-20"


def test_advice_is_counted_and_warnings_are_shown() -> None:
    warned = replace(PLAN, warnings=tuple(f"mind the gap {i}" for i in range(6)))
    lines = render_advice(warned, "")
    assert lines[0] == "warning: mind the gap 0"
    assert "and 2 more warnings: llmk explain" in lines
    assert lines[-1] == "more kernels: 1 could serve, if you choose them (llmk explain)"
    assert not render_advice(replace(PLAN, choices=()), "")


@pytest.mark.parametrize("width", [40, 80, 100])
def test_tables_fit_and_lose_nothing(width: int) -> None:
    rows = [("a.very_long.kernel_id_of_many_parts", "some words " * 12, "x"), ("  indented", "", "y" * 30)]
    text = render_rows(("id", "words", "last"), rows, width)
    assert max(map(len, text.splitlines())) <= width
    assert text.count("words") == 13
    kept = "".join(text.split())
    assert "y" * 8 in kept
    assert "  indented"[:4] in text
    assert render_rows(("id", "words", "last"), rows).count("\n") == 3


@pytest.mark.parametrize("width", [60, 80])
def test_a_plan_fits_a_narrow_terminal(width: int) -> None:
    hint = "a long hint that says what to write into which section " * 3
    stranger = Rejection("s.linear", "s-wheel", (Reason("not_vouched", hint=hint),))
    plan = replace(PLAN, choices=(linear("a_site_with_a_long_name", SMALL, LARGE, rejected=(stranger,)), *CHOICES[1:]))
    lines = render_table(plan, width).splitlines()
    assert max(map(len, lines)) <= width
    assert any(line.startswith("wheels: fast-wheel 1.0 (fast.*)") for line in lines)
    assert "tier native" in render_table(plan)


def test_lines_and_pairs_hang() -> None:
    assert wrapped("one two three", 8, 2) == "one two\n  three"
    assert wrapped("one two three") == "one two three"
    assert render_pairs([("a", "one two three"), ("long", "x")], 12) == "a     one\n      two\n      three\nlong  x"


def test_only_terminals_have_a_width_and_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "72")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert (width_of(io.StringIO()), width_of(Terminal())) == (0, 72)
    assert Style(io.StringIO()).strong("x") == Style().strong("x") == "x"
    assert Style(Terminal()).strong("x") == "\033[1mx\033[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert Style(Terminal()).strong("x") == "x"
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert Style(Terminal()).warning("x") == "x"


def test_tuning_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("llmk.cli.tune_progress.time.monotonic", lambda: clock[0])
    results, states = io.StringIO(), io.StringIO()
    progress = TuneProgress(results, states)
    for done in range(3):
        progress.update(done, 3)
        clock[0] += 60
    progress.update(3, 3)
    assert states.getvalue().splitlines() == [
        "measuring site 1 of 3",
        "measuring site 2 of 3, about 2 min 0 s left",
        "measuring site 3 of 3, about 1 min 0 s left",
    ]
    shown = Terminal()
    progress = TuneProgress(results, shown)
    progress.update(1, 2)
    progress.say("linear up, 1 tokens: 3.00 us by a.b")
    progress.close()
    assert results.getvalue() == "linear up, 1 tokens: 3.00 us by a.b\n"
    assert shown.getvalue().endswith("\r\033[K"), "no state is left behind"


def help_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", ["serve", "run", "explain", "tune", "pull", "models"])
def test_help_is_short_and_all_of_it_is_long(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    short = help_of(capsys, command, "--help")
    assert len(short.splitlines()) <= 80
    assert max(map(len, short.splitlines())) <= 80
    assert "--help-all" in short
    long = help_of(capsys, command, "--help-all")
    assert "--plugins.import-seconds" in long
    assert "--plugins.import-seconds" not in short
    if command == "serve":
        for option in ("--port", "--max-model-len", "--dtype", "--api-key"):
            assert option in short
        assert "--server.port" in long
