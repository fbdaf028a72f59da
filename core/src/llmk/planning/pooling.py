"""What a checkpoint's pooled outputs are: embeddings of texts, or the scores of a classifier's labels.

A checkpoint of sentence-transformers has ``modules.json``, the folder of its module ``Pooling``, and perhaps
``config_sentence_transformers.json``. A classifier's architecture ends with ``ForSequenceClassification``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from llmk.api import Checkpoint, CheckpointError, ConfigError, UnknownArchitecture
from llmk.api.checkpoint import LONGEST_JSON, parse_json
from llmk.api.errors import shown
from llmk.tree import CausalLM, Head

Activation = Literal["identity", "sigmoid", "softmax"]
CLASSIFIER, BASE, GENERATOR = "ForSequenceClassification", "Model", "ForCausalLM"
MODULES, PROMPTS = "modules.json", "config_sentence_transformers.json"
MOST_LABELS = 1 << 17
_ENCODERS = frozenset(
    ("albert", "bert", "big_bird", "camembert", "convbert", "deberta", "deberta-v2", "distilbert", "electra", "ernie",
     "eurobert", "flaubert", "funnel", "jina_bert", "longformer", "luke", "mobilebert", "modernbert", "mpnet", "new",
     "nomic_bert", "nystromformer", "rembert", "roberta", "roformer", "squeezebert", "t5", "umt5", "xlm", "xlm-roberta",
     "xlm-roberta-xl", "xlnet", "xmod")
)  # fmt: skip
"""Values of ``model_type``, for the message alone: no family serves them."""
_METHODS: Mapping[str, Literal["last", "mean"]] = {"lasttoken": "last", "mean": "mean", "mean_tokens": "mean"}
_OLD_MODE = "pooling_mode_"
_BIDIRECTIONAL = {"is_causal": False, "use_bidirectional_attention": True}
_ACTIVATIONS: Mapping[str, Activation] = {
    "regression": "identity",
    "single_label_classification": "softmax",
    "multi_label_classification": "sigmoid",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooling:
    """How requests are answered that pool.

    Attributes:
        method: whether an embedding is the final hidden state of the last token, or the mean of all.
        normalize: whether an embedding is scaled to length 1.
        generates: whether the model generates text too.
        prompts: texts that go before an input, by name. ``default_prompt`` is the name of the one that goes before
            inputs of requests that name none; empty: none does.
        dimensions: the lengths to which an embedding may be truncated; empty: any.
        labels: the names of a classifier's labels; empty: the model computes embeddings.
        activation: the function that makes probabilities of a classifier's logits.
    """

    method: Literal["last", "mean"] = "last"
    normalize: bool = True
    generates: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str = ""
    dimensions: tuple[int, ...] = ()
    labels: tuple[str, ...] = ()
    activation: Activation = "softmax"


def decoder_of(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint with the architecture by which families register the decoder of a classifier or base model."""
    name = checkpoint.architecture
    for suffix in (CLASSIFIER, BASE):
        if name.endswith(suffix) and not name.endswith("LMHeadModel"):
            known = f"{name.removesuffix(suffix).removesuffix('Text')}{GENERATOR}"
            return replace(checkpoint, config={**checkpoint.config, "architectures": [known]})
    return checkpoint


def read_pooling(checkpoint: Checkpoint, chosen: str) -> Pooling | None:
    """How a checkpoint's outputs are pooled; ``None``: not at all. ``chosen`` is ``model.pooling``.

    Raises:
        ConfigError: the model has no such pooling.
        UnknownArchitecture: it is an encoder.
        CheckpointError: a file of sentence-transformers, or the labels in ``config.json``, can't be used.
    """
    is_classifier = checkpoint.architecture.endswith(CLASSIFIER)
    is_base = not is_classifier and decoder_of(checkpoint) is not checkpoint
    has_modules = chosen != "none" and not is_classifier and checkpoint.file(MODULES).is_there
    if is_classifier or is_base or has_modules:
        _refuse_encoder(checkpoint)
    if chosen == "none" and not (is_classifier or is_base):
        return None
    if chosen == "none" or (is_classifier and chosen == "mean"):
        what = "pools the last token alone" if is_classifier else "has no head to generate text with"
        raise ConfigError(f"model.pooling = {chosen!r}: {checkpoint.architecture} {what}", hint="leave it out")
    if is_classifier:
        labels = _labels(checkpoint)
        return Pooling(labels=labels, activation=_activation(checkpoint, len(labels)))
    found = _sentence_transformer(checkpoint) if has_modules else Pooling(generates=not is_base)
    sizes = checkpoint.config.get("matryoshka_dimensions")
    if isinstance(sizes, list) and all(type(size) is int for size in sizes):
        found = replace(found, dimensions=tuple(sizes))
    return found if chosen == "auto" else replace(found, method="mean" if chosen == "mean" else "last")


def with_head(model: CausalLM, pooling: Pooling | None) -> CausalLM:
    """The tree with the head that a model has which generates no text: a classifier's, or none of its own."""
    if pooling is None or pooling.generates:
        return model
    if pooling.labels:
        return replace(model, head=Head(at="score", vocab_size=len(pooling.labels), size=model.head.size))
    head = replace(model.head, tied=True, bias=False)  # it is not used, and so has no weight to be loaded
    return replace(model, head=head, ignored=(*model.ignored, r"lm_head\..*"))


def _refuse_encoder(checkpoint: Checkpoint) -> None:
    config, name = checkpoint.config, checkpoint.architecture
    bidirectional = next((key for key, value in _BIDIRECTIONAL.items() if config.get(key) is value), None)
    if config.get("model_type") in _ENCODERS or bidirectional:
        why = f" ({bidirectional} in config.json)" if bidirectional else ""
        what = f"{name} is an encoder{why}: its tokens attend to later ones, which llmk does not serve yet"
        raise UnknownArchitecture(what, hint="decoders with a pooled output are served, such as Qwen3-Embedding")


def _labels(checkpoint: Checkpoint) -> tuple[str, ...]:
    """The names of a classifier's labels, as transformers names those that have none."""
    named, count = checkpoint.config.get("id2label"), checkpoint.config.get("num_labels")
    if isinstance(named, dict) and named:
        count = len(named)
    count = 2 if count is None else count
    if type(count) is not int or not 1 <= count <= MOST_LABELS:
        raise _unusable(f"num_labels = {shown(count)}, which is not a whole number from 1 to {MOST_LABELS}")
    given = named if isinstance(named, dict) and named else {str(at): f"LABEL_{at}" for at in range(count)}
    try:
        return tuple(str(given[str(at)]) for at in range(count))
    except KeyError as error:
        raise _unusable(f"id2label with {count} labels, but none for {error}") from None


def _activation(checkpoint: Checkpoint, num_labels: int) -> Activation:
    """That of config.json's ``problem_type``, or of sentence-transformers' cross encoders; else a reranker's sigmoid,
    or softmax."""
    config = checkpoint.config
    if (kind := config.get("problem_type")) is not None:
        if kind not in _ACTIVATIONS:
            raise _unusable(f"problem_type = {shown(kind)}; known are {', '.join(_ACTIVATIONS)}")
        return _ACTIVATIONS[kind]
    own = config.get("sentence_transformers")
    function = own.get("activation_fn") if isinstance(own, dict) else config.get("sbert_ce_default_activation_function")
    if str(function).endswith(".Identity"):
        return "identity"
    if str(function).endswith(".Sigmoid"):
        return "sigmoid"
    return "sigmoid" if num_labels == 1 else "softmax"


def _sentence_transformer(checkpoint: Checkpoint) -> Pooling:
    """How sentence-transformers' files say that embeddings are made."""
    file = checkpoint.file(MODULES)
    try:
        modules = parse_json(file.read_text(LONGEST_JSON))
        kinds = {str(module["type"]).rpartition(".")[2]: str(module.get("path", "")) for module in modules}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{file} is no list of modules: {error}", hint="download the file again") from error
    if other := [kind for kind in kinds if kind not in ("Transformer", "Pooling", "Normalize")]:
        what = f"{file} has the module {other[0]}; llmk knows Transformer, Pooling and Normalize"
        raise CheckpointError(what, hint="--model.pooling none serves the model without pooling")
    settings = checkpoint.file(PROMPTS).read_json()
    prompts, default = settings.get("prompts") or {}, settings.get("default_prompt_name") or ""
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise CheckpointError(f"{checkpoint.file(PROMPTS)} has prompts that are no texts", hint="correct it")
    if default and default not in prompts:
        raise CheckpointError(f"{checkpoint.file(PROMPTS)} has no prompt {shown(default)}", hint="correct it")
    config = checkpoint.file(f"{kinds['Pooling']}/config.json").read_json() if "Pooling" in kinds else {}
    method = _method(config, str(file))
    if method == "mean" and config.get("include_prompt") is False and any(prompts.values()):
        what = f"{file} has mean pooling without the prompt's tokens (include_prompt)"
        raise CheckpointError(what, hint="llmk pools all tokens; --model.pooling none serves it without")
    return Pooling(method=method, normalize="Normalize" in kinds, prompts=prompts, default_prompt=default)


def _method(config: Mapping[str, Any], file: str) -> Literal["last", "mean"]:
    """The pooling of a module's config: by name, or as a flag for each."""
    flags = [key.removeprefix(_OLD_MODE) for key, on in config.items() if key.startswith(_OLD_MODE) and on is True]
    named = config.get("pooling_mode")
    modes = [str(named)] if named else flags or ["mean"]
    if len(modes) != 1 or modes[0] not in _METHODS:
        what = f"{file} has a module Pooling by {' and '.join(modes)}; llmk pools the last token, or the mean of all"
        raise CheckpointError(what, hint="--model.pooling none serves the model without pooling")
    return _METHODS[modes[0]]


def _unusable(what: str) -> CheckpointError:
    return CheckpointError(f"config.json has {what}", hint="compare it with the file that the model's authors publish")
