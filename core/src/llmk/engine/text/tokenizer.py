"""A checkpoint's tokenizer and chat templates, read with the ``tokenizers`` library alone where it has a
``tokenizer.json``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jinja2
import tokenizers
from tokenizers import AddedToken

from llmk.api import CheckpointError
from llmk.api.checkpoint import LONGEST_TEMPLATE, CheckpointFile, check_folder, files_in, read_named
from llmk.api.errors import describe
from llmk.engine.text import tokenizer_json
from llmk.engine.text.chat_template import ChatTemplates, Message, compile_template
from llmk.engine.text.control_tokens import ControlTokens
from llmk.engine.text.detokenizer import Detokenizer, Vocabulary
from llmk.planning.checkpoint.fields import check_tokenizer_config

if TYPE_CHECKING:
    from llmk.api import Checkpoint
    from llmk.config.schema import ModelSection


class ChatPrompt(NamedTuple):
    """A conversation as the model is given it."""

    text: str
    token_ids: list[int]


_LONGEST_TOKENIZER = 256 << 20
"""Bytes of a ``tokenizer.json``. The largest of published checkpoints have about 40 MiB."""


class Tokenizer:
    """Text to tokens and back, and messages to a prompt.

    ``eos_token_ids`` end an answer: those of the generation config (else of the model's), and the tokenizer's own.
    ``special_token_ids`` stand for no text. Control tokens that a text spells out are text in chats and control tokens
    in prompts, unless ``control_in_chats`` and ``control_in_prompts`` say otherwise.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        templates: ChatTemplates,
        eos_token_ids: tuple[int, ...] = (),
        *,
        control_in_chats: bool = False,
        control_in_prompts: bool = True,
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._templates = templates
        self._control = ControlTokens(backend, templates.sources.values())
        self._control_in_chats = control_in_chats
        self._control_in_prompts = control_in_prompts
        self.eos_token_ids = eos_token_ids
        added = backend.get_added_tokens_decoder()
        self.special_token_ids = frozenset(i for i, token in added.items() if token.special)
        state = json.loads(backend.decoder.__getstate__()) if backend.decoder is not None else None
        self._vocabulary = Vocabulary(state, backend.id_to_token, self.special_token_ids, self._decode_all)

    @classmethod
    def load(
        cls,
        checkpoint: Checkpoint,
        *,
        folder: str = "",
        chat_template: str = "",
        control_in_chats: bool = False,
        control_in_prompts: bool = True,
    ) -> Tokenizer:
        """The tokenizer of ``checkpoint``, or of ``folder`` where one is named.

        ``chat_template`` names a file with a template that replaces the checkpoint's. Raises
        :class:`~llmk.api.CheckpointError` where there is no tokenizer or a file of it can't be read.
        """
        path = Path(folder).expanduser() if folder else checkpoint.path
        if checkpoint.reader and not folder:
            config = dict(checkpoint.tokenizer_config)
            backend = _parsed(checkpoint.reader.tokenizer().encode(), path)
        else:
            config = _read_config(path, "special_tokens_map.json") | _read_config(path, "tokenizer_config.json")
            backend = _load_backend(path)
        named = {key: text for key, value in config.items() if key.endswith("_token") and (text := _content(value))}
        if chat_template:
            templates = {"default": read_named(chat_template, LONGEST_TEMPLATE)}
        else:
            templates = _templates(path, config)
            if checkpoint.reader and not folder and checkpoint.chat_template is not None:
                templates["default"] = checkpoint.chat_template
        _check_templates(templates, chat_template or str(path))
        _add_missing_tokens(backend, config, named)
        eos = _eos_token_ids(checkpoint, backend.token_to_id(named["eos_token"]) if "eos_token" in named else None)
        control = {"control_in_chats": control_in_chats, "control_in_prompts": control_in_prompts}
        return cls(backend, ChatTemplates(templates, named), eos, **control)

    @property
    def chat_template(self) -> str | None:
        """The source of the template that messages without tools are rendered with."""
        return self._templates.default

    @property
    def chat_templates(self) -> Mapping[str, str]:
        """The sources of all templates by name: ``default``, and ``tool_use`` where tools have one of their own."""
        return self._templates.sources

    @property
    def named_tokens(self) -> Mapping[str, str]:
        """The texts of tokens that the checkpoint names, such as ``eos_token``."""
        return self._templates.variables

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included."""
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The tokens of ``text``; with ``add_special_tokens`` between those that the tokenizer puts around a text.

        Other threads run meanwhile: of the backend's calls, only those for batches let them.
        """
        (encoding,) = self._backend.encode_batch([text], add_special_tokens=add_special_tokens)
        return list(encoding.ids)

    def encode_prompt(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The tokens of a client's prompt: as :meth:`encode`, unless control tokens in prompts are text."""
        if self._control_in_prompts or not self._control.count(self.encode(text, add_special_tokens=False)):
            return self.encode(text, add_special_tokens)
        tokens = self._control.encode_as_text(text)
        return self.surrounded(tokens) if add_special_tokens else tokens

    def surrounded(self, token_ids: Sequence[int]) -> list[int]:
        """``token_ids`` between the special tokens that the tokenizer puts around a text."""
        inner, whole = self.encode("a", add_special_tokens=False), self.encode("a")
        start = next(at for at in range(len(whole)) if whole[at : at + len(inner)] == inner)
        return [*whole[:start], *token_ids, *whole[start + len(inner) :]]

    def joined(self, first: Sequence[int], second: Sequence[int]) -> list[int]:
        """The tokens of two texts, as the tokenizer joins them, with its special tokens."""
        inner = self.encode("a", add_special_tokens=False)
        (whole,) = self._backend.encode_batch([("a", "a")], add_special_tokens=True)
        places = [at for at in range(len(whole.ids)) if whole.ids[at : at + len(inner)] == inner]
        later = [at for at in places if at >= places[0] + max(1, len(inner))]
        if not later:  # a tokenizer that merges the two
            return self.surrounded([*first, *second])
        start, then = places[0], later[0]
        ends = whole.ids[:start], whole.ids[start + len(inner) : then], whole.ids[then + len(inner) :]
        return [*ends[0], *first, *ends[1], *second, *ends[2]]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of ``ids``."""
        return str(self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def render_chat(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None, **template_options: Any
    ) -> str:
        """The prompt for ``messages``. Raises :class:`~llmk.api.RequestError` where the template refuses them."""
        return self._templates.render(messages, tools, **template_options)

    def encode_chat(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None, **template_options: Any
    ) -> ChatPrompt:
        """The prompt for ``messages`` and its tokens, with no control token that the template did not write.

        Where no message spells out a control token, these are the tokens of :meth:`render_chat`'s text. Raises
        :class:`~llmk.api.RequestError` where the template refuses the messages.
        """
        if self._control_in_chats:
            text = self.render_chat(messages, tools, **template_options)
            return ChatPrompt(text, self.encode(text, add_special_tokens=False))
        disguise = self._control.disguise(messages, tools, template_options)
        if disguise is None:
            return self._tokenized(self.render_chat(messages, tools, **template_options))
        shown, its_tools, options = disguise.apply(messages, tools, template_options)
        text, exchanged = self.render_chat(shown, its_tools, **options), disguise.used
        if disguise.partly:
            shown, its_tools, options = disguise.apply(messages, tools, template_options, thorough=True)
            thorough = self.render_chat(shown, its_tools, **options)
            if self._control.found(thorough) != self._control.found(text):
                text, exchanged = thorough, True
        if not exchanged:
            return self._tokenized(text)
        return ChatPrompt(disguise.reveal(text), self._control.encode(text, disguise.reveal))

    def _tokenized(self, text: str) -> ChatPrompt:
        """A prompt in which every control token is the template's, as far as it is spelt out: some normalizers make
        one of other characters."""
        tokens = self.encode(text, add_special_tokens=False)
        if self._control.count(tokens) > len(self._control.found(text)):
            tokens = self._control.encode(text)
        return ChatPrompt(text, tokens)

    def token_text(self, token_id: int) -> str:
        """A token's text inside a longer one; bytes that are no character by themselves are replaced."""
        return self._vocabulary.text(token_id)

    def token_bytes(self, token_id: int) -> bytes:
        """A token's own bytes, which need not be a character."""
        return self._vocabulary.token_bytes(token_id)

    def control_id(self, text: str) -> int | None:
        """The id of the special token that is written as ``text``, if it is one."""
        token = self._backend.token_to_id(text)
        return token if token in self.special_token_ids else None

    def detokenizer(self, skip_special_tokens: bool = True) -> Detokenizer:
        """Makes text of one sequence's tokens as they come."""
        return self._vocabulary.detokenizer(skip_special_tokens=skip_special_tokens)

    def _decode_all(self, ids: list[int]) -> str:
        return str(self._backend.decode(ids, skip_special_tokens=False))


def tokenizer_options(model: ModelSection) -> dict[str, Any]:
    """What the configuration says on :meth:`Tokenizer.load`."""
    return {
        "folder": model.tokenizer,
        "chat_template": model.chat_template,
        "control_in_chats": model.control_tokens_in_chats,
        "control_in_prompts": model.control_tokens_in_prompts,
    }


_OLDER_FORMS = ("*.model*", "vocab*", "*.vocab", "*.tiktoken", "merges.txt", "tekken.json")
_ADD_FILES = "add the checkpoint's tokenizer files, or name a folder that has them with --model.tokenizer"


def _load_backend(path: Path) -> tokenizers.Tokenizer:
    file = CheckpointFile(path, "tokenizer.json")
    if file.is_there:
        return _parsed(file.read(_LONGEST_TOKENIZER), file)
    return _convert_with_transformers(path)


def _parsed(data: bytes, file: object) -> tokenizers.Tokenizer:
    try:
        return tokenizer_json.parse(data)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the library's panics are no Exception
        raise CheckpointError(f"{file} can't be read: {error}", hint="download the file again") from error


def _convert_with_transformers(path: Path) -> tokenizers.Tokenizer:
    """Older checkpoints come with other files, which ``transformers`` knows how to convert."""
    if not any(next(path.glob(pattern), None) for pattern in _OLDER_FORMS):
        raise CheckpointError(f"{path} has no tokenizer (neither tokenizer.json nor an older form)", hint=_ADD_FILES)
    check_folder(path)
    from transformers import AutoTokenizer

    try:
        found = AutoTokenizer.from_pretrained(str(path), local_files_only=True, trust_remote_code=False)
    except Exception as error:
        why = " ".join(str(error).split())
        raise CheckpointError(f"transformers can't load the tokenizer in {path}: {why}", hint=_ADD_FILES) from error
    backend = getattr(found, "backend_tokenizer", None)
    if not isinstance(backend, tokenizers.Tokenizer):
        raise CheckpointError(f"the tokenizer in {path} has no form that the tokenizers library could run")
    return backend


def _add_missing_tokens(backend: tokenizers.Tokenizer, config: Mapping[str, Any], named: Mapping[str, str]) -> None:
    """Adds the tokens that only ``tokenizer_config.json`` knows. What goes around a text is said by
    ``tokenizer.json``.
    """
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    declared: Mapping[str, Mapping[str, Any]] = config.get("added_tokens_decoder") or {}
    for _, token in sorted(declared.items(), key=lambda item: int(item[0])):
        if token["content"] not in known:
            options = {
                key: bool(token.get(key)) for key in ("single_word", "lstrip", "rstrip", "normalized", "special")
            }
            backend.add_tokens([AddedToken(token["content"], **options)])
    special = [AddedToken(text, special=True, normalized=False) for text in named.values() if text not in known]
    backend.add_special_tokens(special)


def _templates(path: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Templates by name, from files or, in older checkpoints, from the tokenizer's config."""
    files = {file.path.stem: file for file in files_in(path, "additional_chat_templates/*.jinja")}
    default = CheckpointFile(path, "chat_template.jinja")
    if default.is_there:
        files["default"] = default
    if files:
        return {name: file.read_text(LONGEST_TEMPLATE) for name, file in files.items()}
    found = config.get("chat_template")
    if isinstance(found, str):
        return {"default": found}
    return {entry["name"]: entry["template"] for entry in found or ()}


def _check_templates(templates: Mapping[str, str], where: str) -> None:
    """Raises CheckpointError for a template that no request could be rendered with."""
    for name, source in templates.items():
        try:
            compile_template(source)
        except (jinja2.TemplateError, RecursionError, SyntaxError) as error:
            line = f", line {error.lineno}" if isinstance(error, jinja2.TemplateSyntaxError) else ""
            raise CheckpointError(
                f"the chat template {name!r} of {where} can't be compiled{line}: {describe(error)}",
                hint="correct it, or name another one with --model.chat-template",
            ) from error


def _eos_token_ids(checkpoint: Checkpoint, own: int | None) -> tuple[int, ...]:
    declared = checkpoint.generation_config.get("eos_token_id", checkpoint.config.get("eos_token_id"))
    ids = declared if isinstance(declared, list) else [declared]
    return tuple(dict.fromkeys(i for i in (*ids, own) if i is not None))


def _content(token: Any) -> str:
    """A special token, which configs write as a string or as an object."""
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) else ""


def _read_config(path: Path, name: str) -> dict[str, Any]:
    file = CheckpointFile(path, name)
    return check_tokenizer_config(file, file.read_json())
