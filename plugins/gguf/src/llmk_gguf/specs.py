"""The plugin module of ``llmk-gguf``: the format. Imports no torch."""

from __future__ import annotations

from llmk.api import OK, CheckpointError, CheckpointFile, CheckpointFormatSpec, Verdict, hookimpl, no


@hookimpl
def llmk_checkpoint_formats() -> list[CheckpointFormatSpec]:
    """GGUF files."""
    return [
        CheckpointFormatSpec(
            id="gguf.gguf",
            name="gguf",
            claims=claims,
            implementation="llmk_gguf.reader:read_gguf",
            summary="GGUF files of llama.cpp, with their tokenizer and chat template",
        )
    ]


def claims(file: CheckpointFile) -> Verdict:
    """Claims files that start as GGUF files do."""
    from llmk_gguf.header import is_gguf

    try:
        return OK if is_gguf(file) else no("magic", wanted="GGUF", found="other bytes")
    except CheckpointError as error:
        return no("unreadable", found=error.message)
