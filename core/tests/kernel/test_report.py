"""The table that people read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from llmk.api import (
    Choice,
    LinearQuery,
    Piece,
    Plan,
    PlatformFacts,
    QuantizationChoice,
    Reason,
    Rejection,
    SiteVariant,
)
from llmk.planning.ranking import END
from llmk.planning.report import could_serve, render_table

BOX = PlatformFacts(name="box", arch="b2", device_type="cpu", device_name="Box Two")


def piece(start: int, stop: int, id: str) -> Piece:
    return Piece(start, stop, id, "a-wheel", "1.0", "m:f", "", "native", "tier native")


def plan() -> Plan:
    hint = 'to choose it: [select.linear] prefer = ["s.linear"]'
    stranger = Rejection("s.linear", "s-wheel", (Reason("not_vouched", hint=hint),))
    part = Choice("op", "norm.rms_norm", "rms_norm", None, (piece(1, END, "a.rms"),))
    choices = (
        Choice("linear", "up", "", None, (piece(1, 65, "a.small"), piece(65, END, "a.large")), (stranger,)),
        Choice("op", "norm", "add_rms_norm", None, (piece(1, END, "a.norm"),), (), (part,)),
    )
    return Plan(BOX, "box.box", "m:P", "toy.toy", "m:T", "Toy", "bfloat16", choices, warnings=("mind the gap",))


def test_table_names_sites_ranges_parts_warnings_and_hints() -> None:
    lines = render_table(plan()).splitlines()
    assert lines[0] == "platform  box/b2 (box.box): Box Two"
    assert lines[1] == "model     Toy by toy.toy, bfloat16"
    rows = [line.split() for line in lines]
    assert ["up", "1-64", "a.small", "a-wheel", "1.0", "native", "tier", "native"] in rows
    assert ["65-", "a.large", "a-wheel", "1.0", "native", "tier", "native"] in rows
    assert "  rms_norm" in "\n".join(lines)
    assert "warning: mind the gap" in lines
    assert lines[-1] == (
        'could also serve: s.linear (s-wheel) at up; to choose it: [select.linear] prefer = ["s.linear"]'
    )


def test_an_op_made_of_parts_says_so() -> None:
    def norm(why: str, *parts: Choice) -> str:
        whole = replace(piece(1, END, "a.norm"), why=why, parts=("rms_norm",))
        table = render_table(replace(plan(), choices=(Choice("op", "norm", "add_norm", None, (whole,), (), parts),)))
        return next(line for line in table.splitlines() if line.startswith("norm")).partition(" native ")[2].strip()

    part = Choice("op", "norm.rms_norm", "rms_norm", None, (piece(1, END, "a.rms"),))
    assert norm("only candidate", part) == "its parts, below"
    assert norm("pinned by norm use", part) == "pinned by norm use; its parts, below"
    assert norm("only candidate") == "only candidate", "its parts are not chosen apart"


def test_sites_are_listed_by_weight_format() -> None:
    def choice(site: str, **query: Any) -> Choice:
        asked = LinearQuery(platform=BOX, site=site, dtype="bfloat16", in_features=8, out_features=8, **query)
        return Choice("linear", site, "", asked, (piece(1, END, "a.linear"),))

    choices = choice("up", weight_format="fp8"), choice("down.fp8", weight_format="fp8"), choice("down.plain")
    method = QuantizationChoice("a.method", "m:Q", "fp8", 8.0)
    sites = (
        SiteVariant("linear", "down", "down.fp8", ("l.0", "l.1")),
        SiteVariant("linear", "down", "down.plain", ("l.2",)),
    )
    quantized = replace(plan(), choices=choices, quantization=(method,), variants=sites)
    lines = render_table(quantized).splitlines()
    assert lines[1].endswith("bfloat16, weights by a.method")
    assert lines[2:4] == ["format    fp8 by a.method: up, down.fp8 (2 layers)", "format    plain: down.plain (1 layer)"]
    assert "format" not in render_table(replace(quantized, quantization=()))


def test_a_hint_is_given_once_per_site() -> None:
    assert len(could_serve(plan())) == 1


def test_fingerprint_depends_on_what_runs_and_not_on_why() -> None:
    same = replace(plan(), warnings=(), choices=tuple(replace(c, rejected=()) for c in plan().choices))
    assert same.fingerprint == plan().fingerprint
    first, second = plan().choices
    other = replace(first, pieces=(piece(1, 33, "a.small"), piece(33, END, "a.large")))
    inner = replace(second, parts=(replace(second.parts[0], pieces=(piece(1, END, "b.rms"),)),))
    changed = [
        replace(plan(), dtype="float32"),
        replace(plan(), wheels=(("a-wheel", "2.0"),)),
        replace(plan(), choices=(other, second)),
        replace(plan(), choices=(first, inner)),
    ]
    assert len({plan().fingerprint, *(one.fingerprint for one in changed)}) == 5
