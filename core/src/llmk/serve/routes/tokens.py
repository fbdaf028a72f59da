"""``/tokenize`` and ``/detokenize``."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends
from starlette.responses import Response

from llmk.api import RequestError
from llmk.serve.protocol.chat import shown
from llmk.serve.protocol.tokens import DetokenizeRequest, TokenizeRequest
from llmk.serve.reply import Reply
from llmk.serve.service import Service, service

router = APIRouter()


@router.post("/tokenize")
async def tokenize(request: TokenizeRequest, service: Annotated[Service, Depends(service)]) -> Response:
    """The tokens of a prompt, or of a conversation as the model would be given it."""
    service.check_model(request.model)
    tokens = await service.prepare(prompt_tokens, service, request)
    answer: dict[str, Any] = {
        "count": len(tokens),
        "max_model_len": service.engine.info.max_model_len,
        "tokens": tokens,
    }
    if request.return_token_strs:
        answer["token_strs"] = [service.engine.tokenizer.token_text(token) for token in tokens]
    return Reply(answer)


@router.post("/detokenize")
async def detokenize(request: DetokenizeRequest, service: Annotated[Service, Depends(service)]) -> Response:
    """The text of tokens, special ones included."""
    service.check_model(request.model)
    if beyond := next((token for token in request.tokens if token >= service.engine.info.vocab_size), None):
        raise RequestError(f"token {beyond} is outside the vocabulary", param="tokens")
    return Reply({"prompt": service.engine.tokenizer.decode(request.tokens, skip_special_tokens=False)})


def prompt_tokens(service: Service, request: TokenizeRequest) -> list[int]:
    """The tokens of a request's prompt or conversation."""
    tokenizer = service.engine.tokenizer
    if request.prompt is not None:
        return tokenizer.encode_prompt(request.prompt, request.add_special_tokens is not False)
    prompt = service.jobs.render(
        request.messages or [],
        shown(request.tools),
        service.jobs.template.options(request.chat_template_kwargs, None),
        add_generation_prompt=request.add_generation_prompt,
    )
    return tokenizer.surrounded(prompt.token_ids) if request.add_special_tokens else prompt.token_ids
