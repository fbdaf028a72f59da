"""The tokenizer of a file, in the form of the ``tokenizers`` library.

A file may hold a ``tokenizer.json`` as a whole (``tokenizer.huggingface.json``); else it is made of the vocabulary: of
byte-level BPE (``gpt2``), or of SentencePiece's BPE (``llama``), whose merges follow from the scores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from llmk.api.errors import shown
from llmk_gguf.metadata import Metadata
from llmk_gguf.splits import SPLITS

if TYPE_CHECKING:
    import tokenizers

WHOLE = "tokenizer.huggingface.json"
_GGML = "tokenizer.ggml"
_TOKENS, _PRE, _MODEL = f"{_GGML}.tokens", f"{_GGML}.pre", f"{_GGML}.model"
_HINT = "name a folder with the model's tokenizer: --model.tokenizer FOLDER"
_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 2, 3, 4, 6
_SPACE = "\u2581"
_NAMED = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
"""What transformers calls a special token, and what GGUF does."""
_NOT_STRIPPING = ("<unk>", "<s>", "<|endoftext|>")
"""Of Phi-3's special tokens, those that don't take the white space after them."""
_ENDS = frozenset(
    ("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<EOT>")
)
"""Control tokens that end a turn, whether or not the file says so: many name but one token, and not the one with which
their chat template ends turns."""


def named_tokens(metadata: Metadata) -> dict[str, str]:
    """The special tokens that the file names, as ``tokenizer_config.json`` does. Raises CheckpointError."""
    tokens, found = metadata.texts(_TOKENS), dict[str, str]()
    if tokens is None:
        return found
    for name, key in _NAMED.items():
        index = metadata.whole(f"{_GGML}.{key}_token_id")
        if index is not None:
            found[f"{name}_token"] = _token(metadata, tokens, index, f"{_GGML}.{key}_token_id")
    return found


def end_tokens(metadata: Metadata) -> list[int]:
    """The tokens that end an answer. Raises CheckpointError."""
    keys = [f"{_GGML}.{name}_token_id" for name in ("eos", "eot", "eom")]
    stated = [index for key in keys if (index := metadata.whole(key)) is not None]
    tokens, kinds = metadata.texts(_TOKENS) or [], metadata.wholes(f"{_GGML}.token_type") or []
    known = [i for i, (text, kind) in enumerate(zip(tokens, kinds, strict=False)) if kind == _CONTROL and text in _ENDS]
    return list(dict.fromkeys((*stated, *known)))


def chat_templates(metadata: Metadata) -> str | list[dict[str, str]] | None:
    """The chat templates, in the form of ``tokenizer_config.json``: the only one, or all by name."""
    key = "tokenizer.chat_template"
    default = metadata.text(key)
    others = {name.removeprefix(f"{key}."): metadata.text(name) or "" for name in metadata.keys(f"{key}.")}
    if not others:
        return default
    named = {**({} if default is None else {"default": default}), **others}
    return [{"name": name, "template": template} for name, template in named.items()]


def tokenizer_json(metadata: Metadata) -> str:
    """The tokenizer as ``tokenizer.json`` has it. Raises CheckpointError where the file has none that is known."""
    if (whole := metadata.text(WHOLE)) is not None:
        return whole
    kind = metadata.text(_MODEL)
    if kind is None:
        raise metadata.refuse(f"has no tokenizer ({_MODEL} or {WHOLE})", hint=_HINT)
    if kind not in _BUILDERS:
        raise metadata.refuse(f"has a tokenizer of the kind {kind!r}; known are {', '.join(_BUILDERS)}", hint=_HINT)
    tokens = metadata.required(metadata.texts(_TOKENS), _TOKENS)
    backend = _BUILDERS[kind](metadata, tokens)
    _add_tokens(backend, metadata, tokens)
    _surround(backend, metadata, tokens)
    text: str = backend.to_str()
    return text


def _byte_level(metadata: Metadata, tokens: Sequence[str]) -> tokenizers.Tokenizer:
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    pre = metadata.text(_PRE) or "not stated"
    if pre not in SPLITS:
        raise metadata.refuse(f"has {_PRE} = {shown(pre)}; known are {', '.join(SPLITS)}", hint=_HINT)
    split, merges = SPLITS[pre], metadata.required(metadata.texts(f"{_GGML}.merges"), f"{_GGML}.merges")
    backend = Tokenizer(_model(metadata, models.BPE, tokens, _pairs(metadata, merges), ignore_merges=split.whole_words))
    if split.nfc:
        backend.normalizer = normalizers.NFC()
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in split.patterns]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
    backend.decoder = decoders.ByteLevel()
    return backend


def _pairs(metadata: Metadata, merges: Sequence[str]) -> list[tuple[str, str]]:
    """Merges, which are written with a space between the two parts; a part may start with one."""
    found = []
    for merge in merges:
        at = merge.find(" ", 1)
        if at < 1 or at == len(merge) - 1:
            raise metadata.refuse(f"has {shown(merge)} among its merges, which is not two parts", hint=_HINT)
        found.append((merge[:at], merge[at + 1 :]))
    return found


def _sentence_piece(metadata: Metadata, tokens: Sequence[str]) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer, decoders, models, normalizers

    # Some files write tokens of spaces alone as such, and not as the sign that stands for them.
    tokens = [_SPACE * len(token) if token and not token.strip(" ") else token for token in tokens]
    kinds = metadata.wholes(f"{_GGML}.token_type") or []
    unknown = next((token for token, kind in zip(tokens, kinds, strict=False) if kind == _UNKNOWN), None)
    options: dict[str, Any] = {"byte_fallback": _BYTE in kinds, "fuse_unk": True, "unk_token": unknown}
    backend = Tokenizer(_model(metadata, models.BPE, tokens, _merges_of(metadata, tokens), **options))
    prefix = metadata.flag(f"{_GGML}.add_space_prefix") is not False
    replace = normalizers.Replace(" ", _SPACE)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), replace]) if prefix else replace
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return backend


def _merges_of(metadata: Metadata, tokens: Sequence[str]) -> list[tuple[str, str]]:
    """The merges that SentencePiece makes: of all pairs of tokens, the one whose result has the highest score. Gemma's
    scores don't order all of its tokens, but their ids do."""
    scores = metadata.required(metadata.numbers(f"{_GGML}.scores"), f"{_GGML}.scores")
    if len(scores) != len(tokens):
        raise metadata.refuse(f"has {len(tokens):,} tokens, but {len(scores):,} scores", hint=_HINT)
    ids = {token: index for index, token in enumerate(tokens)}
    by_id = (metadata.text("general.architecture") or "").startswith("gemma")
    found: list[tuple[float, int, int, str, str]] = []
    for token, index in ids.items():
        for at in range(1, len(token)):
            left, right = ids.get(token[:at]), ids.get(token[at:])
            if left is not None and right is not None:
                found.append((index if by_id else -scores[index], left, right, token[:at], token[at:]))
    return [(left, right) for *_, left, right in sorted(found)]


_BUILDERS: Mapping[str, Callable[[Metadata, Sequence[str]], Any]] = {"gpt2": _byte_level, "llama": _sentence_piece}


def _model(
    metadata: Metadata, kind: Any, tokens: Sequence[str], merges: Sequence[tuple[str, str]], **options: Any
) -> Any:
    vocabulary = {token: index for index, token in enumerate(tokens)}
    try:
        return kind(vocabulary, list(merges), **options)
    except Exception as error:  # the library raises Exception itself
        raise metadata.refuse(f"has merges that don't fit its tokens: {error}", hint=_HINT) from error


def _add_tokens(backend: tokenizers.Tokenizer, metadata: Metadata, tokens: Sequence[str]) -> None:
    """Tokens that are found in a text before it is split: control tokens, and those that users of the vocabulary
    added. Phi-3's take the white space after them."""
    from tokenizers import AddedToken

    kinds = metadata.wholes(f"{_GGML}.token_type") or []
    strips = metadata.text("general.architecture") == "phi3" and metadata.text(_MODEL) == "llama"
    added = [
        AddedToken(
            token, special=kind != _USER_DEFINED, normalized=False, rstrip=strips and token not in _NOT_STRIPPING
        )
        for token, kind in zip(tokens, kinds, strict=False)
        if token and kind in (_UNKNOWN, _CONTROL, _USER_DEFINED)
    ]
    backend.add_special_tokens([token for token in added if token.special])
    backend.add_tokens([token for token in added if not token.special])


def _surround(backend: tokenizers.Tokenizer, metadata: Metadata, tokens: Sequence[str]) -> None:
    """Puts the tokens for a text's start and end around it, as the file says or as is usual for its kind."""
    from tokenizers import processors

    usual = metadata.text(_MODEL) == "llama" or getattr(SPLITS.get(metadata.text(_PRE) or ""), "bos", False)
    special, parts = [], {"bos": "", "eos": ""}
    for name, default in (("bos", usual), ("eos", False)):
        wanted = metadata.flag(f"{_GGML}.add_{name}_token")
        index = metadata.whole(f"{_GGML}.{name}_token_id")
        if (default if wanted is None else wanted) and index is not None:
            parts[name] = _token(metadata, tokens, index, f"{_GGML}.{name}_token_id")
            special.append((parts[name], index))
    if special:
        whole = [part for part in (parts["bos"], "$A", parts["eos"]) if part]
        pair = [
            part for part in (parts["bos"], "$A", parts["eos"], parts["bos"] and f"{parts['bos']}:1", "$B:1") if part
        ]
        backend.post_processor = processors.TemplateProcessing(single=whole, pair=pair, special_tokens=special)


def _token(metadata: Metadata, tokens: Sequence[str], index: int, key: str) -> str:
    if not 0 <= index < len(tokens):
        raise metadata.refuse(f"has {key} = {index}, but {len(tokens):,} tokens")
    return tokens[index]
