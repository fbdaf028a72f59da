"""Bodies of the routes that pool: embeddings, scores, ranks and labels.

OpenAI's ``/v1/embeddings``; rerank requests as Cohere (v1 and v2) and Jina define them; scores, labels and ``/pooling``
as other serving engines do.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from llmk.serve.protocol.base import Body, Entries, Refused, invalid
from llmk.serve.protocol.sampling import TokenId

Positive = Annotated[int, Field(ge=1)]


def _nullable(schema: dict[str, Any]) -> None:
    """Has a schema say that fields with a default may be null, which is the default."""
    for name, field in schema["properties"].items():
        if "default" in field and {"type": "null"} not in field.get("anyOf", ()):
            about = {key: field.pop(key) for key in ("default", "description", "title") if key in field}
            schema["properties"][name] = {"anyOf": [field, {"type": "null"}], **about}


class PooledFields(Body):
    """Fields of all these bodies."""

    model_config = ConfigDict(json_schema_extra=_nullable)

    model: str | None = Field(default=None, description="the name of the served model")
    truncate_prompt_tokens: Literal[-1] | Positive | None = Field(
        default=None, description="keep so many of an input's first tokens; -1: as many as the model's context has"
    )
    priority: int = Field(
        default=0, ge=-(2**31), le=2**31 - 1, description="lower is sooner, where the scheduling policy respects it"
    )
    cache_salt: str = Field(default="", description="requests with different salts share no cached prefix")
    user: str | None = Field(default=None, description="no effect on the answer")


class InputFields(PooledFields):
    """Inputs, which are texts or token ids."""

    input: Annotated[str, Field(min_length=1)] | Entries[str] | Entries[TokenId] | Entries[Entries[TokenId]]
    add_special_tokens: bool = Field(default=True, description="put the tokenizer's special tokens around texts")
    prompt_name: str | None = Field(
        default=None, description="which of the checkpoint's prompts goes before texts; '': none"
    )

    @model_validator(mode="after")
    def _check_filled(self) -> Self:
        if not self.input:
            raise PydanticCustomError("invalid_value", "'input' is empty", {"field": "input"})
        if not isinstance(self.input, str):
            empty = next((at for at, item in enumerate(self.input) if item in ("", [])), None)
            if empty is not None:
                raise invalid("input", f"entry {empty} of 'input' is empty")
        return self

    @property
    def inputs(self) -> list[str | list[int]]:
        """One entry for each."""
        if isinstance(self.input, str):
            return [self.input]
        tokens = [item for item in self.input if isinstance(item, int)]
        return [tokens] if tokens else [item for item in self.input if not isinstance(item, int)]


class EmbeddingRequest(InputFields):
    """The body of a request for embeddings."""

    encoding_format: Literal["float", "base64"] = Field(
        default="float", description="base64: of 32-bit floating-point numbers, the low bytes first"
    )
    dimensions: Positive | None = Field(default=None, description="keep so many of an embedding's first numbers")
    normalize: bool | None = Field(default=None, description="scale to length 1; null: as the checkpoint's files say")


class ClassifyRequest(InputFields):
    """The body of a request for the probabilities of labels."""

    use_activation: bool = Field(default=True, description="false: logits in place of probabilities")


class PoolingRequest(EmbeddingRequest):
    """The body of a request for numbers of any of these kinds, by default those that the model is for."""

    task: Literal["embed", "classify", "token_embed"] | None = Field(
        default=None, description="token_embed: an embedding of each token"
    )
    use_activation: bool = Field(default=True, description="false: logits in place of probabilities")


class ScoreRequest(PooledFields):
    """The body of a request for the scores of texts for one text, or for as many."""

    text_1: str | Entries[str] | None = Field(default=None, description="the query, or one for each text")
    text_2: str | Entries[str] | None = Field(default=None, description="the texts")
    queries: str | Entries[str] | None = Field(default=None, description="another name of text_1")
    documents: str | Entries[str] | None = Field(default=None, description="another name of text_2")

    @model_validator(mode="after")
    def _check_both(self) -> Self:
        for name, other in (("text_1", "queries"), ("text_2", "documents")):
            given = [getattr(self, each) for each in (name, other) if getattr(self, each) is not None]
            if not given:
                raise PydanticCustomError("missing", "Field required", {"field": name})
            if len(given) > 1:
                raise invalid(other, f"'{name}' and '{other}' can't both be given")
            if not given[0] or (not isinstance(given[0], str) and "" in given[0]):
                raise invalid(name, f"'{name}' is empty, or has an empty text")
        return self

    @property
    def pairs(self) -> tuple[list[str], list[str]]:
        """Queries and documents."""
        first = self.text_1 if self.text_1 is not None else self.queries
        second = self.text_2 if self.text_2 is not None else self.documents
        queries, documents = ([each] if isinstance(each, str) else each or [] for each in (first, second))
        return queries, documents


class RerankRequest(PooledFields):
    """The body of a request to sort documents by how well they fit a query."""

    refused: ClassVar = {
        "rank_fields": Refused("the field 'text' of documents is ranked", (["text"],)),
        "max_chunks_per_doc": Refused("documents are not split; 'max_tokens_per_doc' truncates them", (1,)),
    }

    query: Annotated[str, Field(min_length=1)]
    documents: Annotated[Entries[str | dict[str, Any]], Field(min_length=1)] = Field(
        description="texts, or objects whose field 'text' is one"
    )
    top_n: Positive | None = Field(default=None, description="return so many; null: all")
    return_documents: bool | None = Field(
        default=None, description="whether results have their documents; null: yes, but not in version 2"
    )
    max_tokens_per_doc: Positive | None = Field(default=None, description="keep so many of a document's first tokens")

    @model_validator(mode="after")
    def _check_texts(self) -> Self:
        for at, text in enumerate(self.texts):
            if not isinstance(text, str) or not text:
                raise invalid("documents", f"documents[{at}] has no text")
        return self

    @property
    def texts(self) -> list[str]:
        """The text of each document."""
        return [each if isinstance(each, str) else each.get("text", "") for each in self.documents]
