"""The plugin module: the specs of this distribution. It imports no torch."""

from __future__ import annotations

from llmk.api import OK, CheckpointFile, CheckpointFormatSpec, Verdict, hookimpl, no

MAGIC = b"ACME\x00bundle\x01"


def claims(file: CheckpointFile) -> Verdict:
    """By the first bytes: names say little, and a folder's files are all asked."""
    with file.open() as stream:
        return OK if stream.read(len(MAGIC)) == MAGIC else no("magic", wanted=repr(MAGIC))


@hookimpl
def llmk_checkpoint_formats() -> list[CheckpointFormatSpec]:
    """Formats of checkpoints."""
    return [
        CheckpointFormatSpec(
            id="acme.bundle",
            name="acme-bundle",
            claims=claims,
            implementation="llmk_acme.bundle:read",
            examples="llmk_acme.examples:BUNDLE",
            summary="a model in one file: config, tokenizer and tensors",
        )
    ]
