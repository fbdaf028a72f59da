"""The section of the limits of one request."""

from __future__ import annotations

from pydantic import Field

from llmk.config.section import Count, Section


class LimitsSection(Section):
    """Limits of one request, for fields whose cost the model's context length does not limit."""

    messages: Count = Field(default=10_000, description="Messages of a conversation.")
    parts: Count = Field(default=50_000, description="Parts and tool calls of all messages of a conversation.")
    tools: Count = Field(default=1024, description="Tools that a request offers.")
    prompts: Count = Field(default=1024, description="Prompts of a text completion, or of an IO processor.")
    stop: Count = Field(default=64, description="Strings in stop.")
    stop_characters: Count = Field(default=4096, description="Characters of all strings in stop.")
    stop_token_ids: Count = Field(default=1024, description="Tokens in stop_token_ids.")
    bad_words: Count = Field(default=1000, description="Words in bad_words.")
    bad_words_characters: Count = Field(default=50_000, description="Characters of all words in bad_words.")
    bad_words_tokens: Count = Field(default=1 << 16, description="Tokens of all spellings of bad_words, times n.")
    allowed_token_ids: Count = Field(default=1 << 18, description="Tokens in allowed_token_ids.")
    logit_bias: Count = Field(default=4096, description="Tokens in logit_bias.")
    logits_processors: Count = Field(default=64, description="Logits processors that a request names.")
    logits_processors_bytes: Count = Field(default=1 << 16, description="JSON bytes of logits_processors.")
    grammar_bytes: Count = Field(default=1 << 17, description="Bytes of a grammar: a regex, choices, a JSON schema.")
    grammar_symbols: Count = Field(default=200_000, description="Symbols in the rules of a compiled grammar.")
    grammar_states: Count = Field(
        default=20_000, description="States of a grammar's automata, made as outputs are matched: some KB each."
    )
    mcp_calls: Count = Field(default=32, description="Calls of tools of MCP servers that a response makes.")
    mcp_bytes: Count = Field(default=1 << 18, description="Bytes of what a tool of an MCP server returns.")
    mcp_tools: Count = Field(default=128, description="Tools of an MCP server.")
    prompt_embeds_bytes: Count = Field(default=64 << 20, description="Bytes of all prompt_embeds, times n.")
    metadata: Count = Field(default=1024, description="Entries in metadata.")
    name_characters: Count = Field(default=4096, description="Characters of a name: cache_salt, user, and the like.")
    tokens: Count = Field(default=1 << 20, description="Tokens that /tokenize makes and /detokenize takes.")
    pooled_values: Count = Field(default=1 << 22, description="Numbers in the response of an embedding request.")
    io_values: Count = Field(default=1 << 20, description="Values in the body of an IO processor, at any depth.")
