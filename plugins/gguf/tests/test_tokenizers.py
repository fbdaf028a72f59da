"""Tokenizers and chat templates that are made of a file's metadata, and those that they were written from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gguf_files import write_gguf
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from llmk.api import CheckpointError, CheckpointFile
from llmk.engine.text.tokenizer import Tokenizer as Served
from llmk_gguf.reader import read_gguf
from llmk_gguf.splits import SPLITS
from llmk_testing.checkpoints import CHAT_TEMPLATE, TEXT, write_checkpoint

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CORPUS = (
    *TEXT,
    "",
    " ",
    "   three spaces, then a tab\tand\n\n\nlines\r\n\r\n   indented",
    "It's 2024-11-25, isn't it? WE'LL SEE: 1234567890 + 3.14159e-10 = x²",
    "don't DON'T won\u2019t",
    "Ångström cafe\u0301 e\u0301\u0300 ﬁ 東京都に行きました。한국어 العربية עברית ไทย हिन्दी",
    "emoji 🙂👩‍👩‍👧‍👦🏳️‍🌈 and \u200b zero width \ufeff bom \x00 null \x7f",
    "<|im_start|>user\nhello<|im_end|>\n<think>so</think><|endoftext|>",
    " <|im_end|> <think> <|im_start|><|im_start|>",
    "def f(x):\n    return {\n        'a': [1, 2, 3],\n    }  # end",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!!!!!!!!!!!!!!!!",
    "\u2581 is a sign of its own",
)
MESSAGES = [
    {"role": "user", "content": "Hi, 東京!"},
    {"role": "assistant", "content": " x\n"},
    {"role": "user", "content": ""},
]


def byte_level(pre: str, vocab_size: int = 400) -> Tokenizer:
    """Trained with the pre-tokenizer of that name."""
    split = SPLITS[pre]
    tokenizer = Tokenizer(models.BPE(ignore_merges=split.whole_words))
    tokenizer.normalizer = normalizers.NFC() if split.nfc else None
    patterns = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in split.patterns]
    parts = [*patterns, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    tokenizer.add_tokens(["<think>", "</think>"])
    return tokenizer


def sentence_piece(prefix: bool) -> Tokenizer:
    """As transformers converts those of Llama 2 (with a space before each text) and Gemma (without)."""
    special = ["<unk>", "<s>", "</s>", *SPECIAL]
    replace = normalizers.Replace(" ", "\u2581")
    normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), replace]) if prefix else replace
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizer
    trained.pre_tokenizer = pre_tokenizers.Split(Regex("(?=\u2581)"), "isolated")
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=[*special, *(f"<0x{byte:02X}>" for byte in range(256))],
        show_progress=False,
    )
    trained.train_from_iterator(CORPUS[:4] * 3, trainer)
    vocabulary = sorted(trained.get_vocab().items(), key=lambda pair: pair[1])
    ids = dict(vocabulary)
    pairs = [
        (index, ids[token[:at]], ids[token[at:]], token[:at], token[at:])
        for token, index in vocabulary
        for at in range(1, len(token))
        if token[:at] in ids and token[at:] in ids
    ]
    merges = [(left, right) for *_, left, right in sorted(pairs)]
    tokenizer = Tokenizer(models.BPE(ids, merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizer
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=["<s>", "$A"], pair=["<s>", "$A", "<s>:1", "$B:1"], special_tokens=[("<s>", ids["<s>"])]
    )
    tokenizer.add_special_tokens(special)
    return tokenizer


MAKERS: dict[str, tuple[Callable[[], Tokenizer], str, dict[str, Any]]] = {
    **{pre: (lambda pre=pre: byte_level(pre), pre, {}) for pre in SPLITS},  # type: ignore[misc]
    "sentence piece": (lambda: sentence_piece(True), "", {"tokenizer__ggml__bos_token_id": 1}),
    "sentence piece without a prefix": (
        lambda: sentence_piece(False),
        "",
        {"tokenizer__ggml__bos_token_id": 1, "tokenizer__ggml__add_space_prefix": False},
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose tokenizer tests replace."""
    return write_checkpoint(tmp_path_factory.mktemp("plain"), "llama", vocab_size=700, num_hidden_layers=1)


def served(file: Path) -> Served:
    return Served.load(read_gguf([CheckpointFile(file.parent, file.name)], {}))


@pytest.mark.parametrize("name", MAKERS)
def test_texts_have_the_same_tokens(folder: Path, tmp_path: Path, name: str) -> None:
    make, pre, metadata = MAKERS[name]
    original = make()
    original.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHAT_TEMPLATE}))
    found = served(write_gguf(folder, tmp_path / "model.gguf", pre=pre, **metadata))
    for text in CORPUS:
        for special in (True, False):
            expected = original.encode(text, add_special_tokens=special).ids
            assert found.encode(text, add_special_tokens=special) == expected, text
        assert found.decode(expected, skip_special_tokens=False) == original.decode(expected, skip_special_tokens=False)
    assert {original.id_to_token(i) for i in found.special_token_ids} == {
        token.content for token in original.get_added_tokens_decoder().values() if token.special
    }


def test_chats_are_rendered_the_same(folder: Path, tmp_path: Path) -> None:
    byte_level("qwen2").save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": CHAT_TEMPLATE, "eos_token": "<|im_end|>"})
    )
    expected = Served.load(read_gguf_like_folder(folder))
    found = served(write_gguf(folder, tmp_path / "model.gguf", pre="qwen2"))
    options = {"add_generation_prompt": True}
    assert found.encode_chat(MESSAGES, None, **options) == expected.encode_chat(MESSAGES, None, **options)
    assert found.named_tokens["eos_token"] == "<|im_end|>"
    assert found.eos_token_ids == (2, 0), "the stated one, and a control token that is known to end texts"


def read_gguf_like_folder(folder: Path) -> Any:
    from llmk.planning.checkpoint.folder import read_checkpoint

    return read_checkpoint(folder)


def test_templates_may_have_names(folder: Path, tmp_path: Path) -> None:
    byte_level("qwen2").save(str(folder / "tokenizer.json"))
    named = {"tokenizer__chat_template__tool_use": "tools: {{ tools }}"}
    found = served(write_gguf(folder, tmp_path / "model.gguf", pre="qwen2", **named))
    assert found.render_chat(MESSAGES, [{"type": "function"}]).startswith("tools: [")
    assert found.chat_template == CHAT_TEMPLATE


def test_a_whole_tokenizer_is_used_as_it_is(folder: Path, tmp_path: Path) -> None:
    tokenizer = byte_level("tekken")
    tokenizer.save(str(folder / "tokenizer.json"))
    whole = {"tokenizer__huggingface__json": tokenizer.to_str(), "tokenizer__ggml__pre": "of-its-own"}
    found = served(write_gguf(folder, tmp_path / "model.gguf", **whole))
    assert found.encode("WE'LL see") == tokenizer.encode("WE'LL see").ids


def test_the_end_of_a_text_is_marked_where_the_file_says_so(folder: Path, tmp_path: Path) -> None:
    byte_level("qwen2").save(str(folder / "tokenizer.json"))
    flags = {"tokenizer__ggml__add_eos_token": True, "tokenizer__ggml__eos_token_id": 2}
    found = served(write_gguf(folder, tmp_path / "model.gguf", pre="qwen2", **flags))
    assert found.encode("a")[-1] == 2
    assert found.encode("a", add_special_tokens=False)[-1] != 2
    assert found.encode("a")[0] != 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": None}, r"has no tokenizer \(tokenizer\.ggml\.model or tokenizer\.huggingface\.json\)"),
        ({"model": "bert"}, "has a tokenizer of the kind 'bert'; known are gpt2, llama"),
        ({"model": 3}, r"has tokenizer\.ggml\.model = 3, which is not a text"),
        ({"pre": "of-tomorrow"}, r"has tokenizer\.ggml\.pre = 'of-tomorrow'; known are llama-bpe, "),
        ({"pre": None}, r"has tokenizer\.ggml\.pre = 'not stated'; known"),
        ({"tokens": None}, r"has no tokenizer\.ggml\.tokens"),
        ({"tokens": [1, 2]}, r"has tokenizer\.ggml\.tokens = \[1, 2\], which is not a list of texts"),
        ({"merges": None}, r"has no tokenizer\.ggml\.merges"),
        ({"merges": ["ab"]}, "has 'ab' among its merges, which is not two parts"),
        ({"merges": ["not there"]}, "has merges that don't fit its tokens"),
        ({"eos_token_id": 100_000}, r"has tokenizer\.ggml\.eos_token_id = 100000, but 402 tokens"),
        ({"model": "llama"}, r"has no tokenizer\.ggml\.scores"),
        ({"model": "llama", "scores": [1.0]}, "has 402 tokens, but 1 scores"),
    ],
)
def test_what_is_missing_or_unknown_is_named(folder: Path, tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    byte_level("qwen2").save(str(folder / "tokenizer.json"))
    metadata = {f"tokenizer__ggml__{key}": value for key, value in changes.items()}
    file = write_gguf(folder, tmp_path / "model.gguf", pre="qwen2", **metadata)
    with pytest.raises(CheckpointError, match=words) as caught:
        served(file)
    assert caught.value.hint
