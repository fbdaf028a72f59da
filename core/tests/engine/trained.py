"""Tokenizers of each kind, trained on the spot."""

from __future__ import annotations

from functools import cache

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

CORPUS = [
    "The quick brown fox jumps over the lazy dog.",
    "Größe, naïve café, smörgåsbord — “quoted” text.",
    "日本語のテキスト と 中文文本 および 한국어",
    "🙂🙃 emoji 👩‍👩‍👧 families 🇫🇷 flags",
    "def f(x):\n\treturn x ** 2  # squared\n\n",
    "  leading and   repeated spaces  ",
] * 4
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]


def byte_level() -> Tokenizer:
    """GPT-2's kind, with an added token that holds a space and one that is not special."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("two words", normalized=False), AddedToken("<tool>", normalized=False), "ünï"])
    return tokenizer


def llama() -> Tokenizer:
    """Llama 2's kind: BPE over marked spaces, bytes for what is not in the vocabulary."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    special = ["<unk>", *SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=special, limit_alphabet=40, show_progress=False)
    tokenizer.train_from_iterator(CORPUS[:2], trainer)
    return _without_special(tokenizer, special[5:])


def gemma() -> Tokenizer:
    """Gemma's kind: as Llama's, with nothing stripped."""
    tokenizer = llama()
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def metaspace(prepend: str = "always") -> Tokenizer:
    """T5's kind: unigrams with the Metaspace decoder."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=prepend)
    trainer = trainers.UnigramTrainer(
        vocab_size=200, special_tokens=["<unk>", *SPECIAL], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def metaspace_never() -> Tokenizer:
    """The Metaspace decoder that keeps a first space."""
    return metaspace("never")


def word_piece() -> Tokenizer:
    """BERT's kind, whose decoder is not one of those that are known by name."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\s+"), "removed")
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=["[UNK]", *SPECIAL], show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def _without_special(tokenizer: Tokenizer, names: list[str]) -> Tokenizer:
    """Byte tokens belong to the vocabulary, and are not special."""
    import json

    state = json.loads(tokenizer.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] not in names]
    return Tokenizer.from_str(json.dumps(state))


KINDS = {f.__name__: cache(f) for f in (byte_level, llama, gemma, metaspace, metaspace_never, word_piece)}
