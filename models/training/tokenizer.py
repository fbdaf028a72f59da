"""Trains the byte-level BPE on the corpus and writes the tokenizer files.

    python models/training/tokenizer.py

Digits are always single tokens, so that sums can be worked out digit by digit.
"""

import argparse
import json
from collections.abc import Iterator
from itertools import islice

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from corpus import samples
from rendering import END_OF_TEXT, END_OF_TURN, ChatTemplate
from train import DEMO

SPECIAL = (END_OF_TEXT, "<|im_start|>", END_OF_TURN)
VISIBLE = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
"""Markup that is one token each but stays in decoded text."""
PIECES = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s+(?!\S)|\s+"


def texts(documents: int) -> Iterator[str]:
    """The corpus as text, without the markup that has tokens of its own."""
    template = ChatTemplate.of(DEMO)
    for sample in islice(samples(0, "train"), documents):
        text = template.prompt(sample) + template.reply(sample)
        for mark in (*SPECIAL, *VISIBLE):
            text = text.replace(mark, "\x00")
        yield from text.split("\x00")


def build(documents: int, size: int) -> Tokenizer:
    """Train the tokenizer; ``size`` counts the added tokens too."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size - len(SPECIAL) - len(VISIBLE),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=16,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(documents), trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in VISIBLE])
    return tokenizer


def settings(tokenizer: Tokenizer) -> dict[str, object]:
    """The content of ``tokenizer_config.json``."""
    added = {
        str(tokenizer.token_to_id(token)): {
            "content": token,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": token in SPECIAL,
        }
        for token in (*SPECIAL, *VISIBLE)
    }
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 2048,
        "add_bos_token": False,
        "add_prefix_space": False,
        "bos_token": None,
        "eos_token": END_OF_TURN,
        "pad_token": END_OF_TEXT,
        "unk_token": None,
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": False,
        "added_tokens_decoder": added,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=60000, help="documents to learn the merges from")
    parser.add_argument("--size", type=int, default=4096, help="tokens in all")
    options = parser.parse_args()
    tokenizer = build(options.documents, options.size)
    tokenizer.save(str(DEMO / "tokenizer.json"), pretty=False)
    (DEMO / "tokenizer_config.json").write_text(json.dumps(settings(tokenizer), indent=2) + "\n")
    print(f"{tokenizer.get_vocab_size()} tokens")


if __name__ == "__main__":
    main()
