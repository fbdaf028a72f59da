"""Text that comes piece by piece is the text of all tokens at once, for every kind of decoder and any tokens."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trained import CORPUS, KINDS

from llmk.engine.text.chat_template import ChatTemplates
from llmk.engine.text.detokenizer import ByteDetokenizer, PieceDetokenizer, WindowDetokenizer
from llmk.engine.text.tokenizer import Tokenizer


def tokenizer(kind: str) -> Tokenizer:
    return Tokenizer(KINDS[kind](), ChatTemplates({}, {}))


def pieces(tok: Tokenizer, ids: list[int], skip: bool, sizes: list[int]) -> list[str]:
    detokenizer = tok.detokenizer(skip)
    texts, at = [], 0
    for size in [*sizes, *[1] * len(ids)]:
        texts.append(detokenizer.push(ids[at : at + size]))
        at += size
    return [*texts, detokenizer.finish()]


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=150)
@given(data=st.data(), skip=st.booleans(), sizes=st.lists(st.integers(0, 5), max_size=10))
def test_any_tokens(kind, data, skip, sizes):
    tok = tokenizer(kind)
    ids = data.draw(st.lists(st.integers(0, tok.vocab_size + 3), max_size=40))
    assert "".join(pieces(tok, ids, skip, sizes)) == tok.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("kind", ["llama", "gemma"])
@settings(deadline=None, max_examples=150)
@given(run=st.lists(st.sampled_from([0xE6, 0x97, 0xA5, 0xF0, 0x9F, 0x99, 0x82, 0x41, None]), max_size=20))
def test_runs_of_byte_tokens(kind, run):
    tok = tokenizer(kind)
    backend = KINDS[kind]()
    ids = [backend.token_to_id("e" if byte is None else f"<0x{byte:02X}>") for byte in run]
    assert "".join(pieces(tok, ids, False, [])) == tok.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=50)
@given(text=st.sampled_from(CORPUS) | st.text(max_size=30))
def test_real_text(kind, text):
    tok = tokenizer(kind)
    ids = tok.encode(text)
    assert "".join(pieces(tok, ids, True, [])) == tok.decode(ids)


def test_known_decoders_are_recognised():
    made = {kind: type(tokenizer(kind).detokenizer()) for kind in KINDS}
    assert made == {
        "byte_level": ByteDetokenizer,
        "llama": PieceDetokenizer,
        "gemma": PieceDetokenizer,
        "metaspace": PieceDetokenizer,
        "metaspace_never": PieceDetokenizer,
        "word_piece": WindowDetokenizer,
    }


def test_text_comes_as_soon_as_it_is_certain():
    tok = tokenizer("byte_level")
    ids = tok.encode("a🙂b")
    texts = pieces(tok, ids, True, [])[: len(ids)]
    assert [text for text in texts if text] == ["a", "🙂", "b"]
    assert "\ufffd" not in "".join(texts)


def test_an_unfinished_character_is_replaced_at_the_end():
    tok = tokenizer("byte_level")
    detokenizer = tok.detokenizer()
    assert detokenizer.push(tok.encode("🦀")[:2]) == ""
    assert detokenizer.finish() == "\ufffd"


def test_the_window_does_not_wait_for_ever():
    detokenizer = WindowDetokenizer(lambda ids: "\ufffd" * len(ids))
    assert len(detokenizer.push([1] * 100)) >= 90


@pytest.mark.parametrize("kind", ["llama", "metaspace", "byte_level"])
def test_a_tokens_text_keeps_its_space(kind):
    tok = tokenizer(kind)
    ids = tok.encode("the lazy dog")
    assert tok.token_text(ids[-1]).strip()
    assert "".join(map(tok.token_text, ids)).strip() == "the lazy dog"
    assert " " in "".join(map(tok.token_text, ids))
