"""Checks of the training code that need no accelerator."""

from dataclasses import asdict
from itertools import islice
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from corpus import samples
from corpus.core import split_of
from rendering import ChatTemplate, Encoder, call_text
from train import DEMO, export
from transformer import Packing, Qwen3, Shape

SMALL = Shape(
    vocab_size=128,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
)


def test_logits_equal_those_of_transformers_for_packed_documents() -> None:
    torch.manual_seed(0)
    ours = Qwen3(SMALL)
    for weight in ours.parameters():
        torch.nn.init.normal_(weight, mean=float(weight.dim() == 1), std=0.3)
    sizes = {name: value for name, value in asdict(SMALL).items() if name != "rope_theta"}
    rope = {"rope_type": "default", "rope_theta": SMALL.rope_theta}
    theirs = Qwen3ForCausalLM(Qwen3Config(**sizes, rope_parameters=rope, tie_word_embeddings=True)).eval()
    missing, unexpected = theirs.load_state_dict(ours.state_dict(), strict=False)
    assert set(missing) <= {"lm_head.weight"}
    assert not unexpected
    theirs.tie_weights()
    documents = [torch.randint(128, (length,)) for length in (7, 1, 12)]
    starts = torch.tensor([0, 7, 8, 20], dtype=torch.int32)
    with torch.no_grad():
        packed = ours(torch.cat(documents), Packing.of(starts, 20, 12))
        apart = torch.cat([theirs(document[None]).logits[0] for document in documents])
    torch.testing.assert_close(packed, apart, rtol=1e-4, atol=1e-4)


def test_exported_checkpoint_loads_in_transformers(tmp_path: Path) -> None:
    model = Qwen3(Shape(vocab_size=4096, hidden_size=32, intermediate_size=48, num_hidden_layers=1))
    export(model, DEMO, tmp_path)
    loaded = Qwen3ForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert torch.equal(loaded.model.embed_tokens.weight, model.model.embed_tokens.weight.bfloat16())
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight


def test_tokenizer_is_the_same_in_transformers_and_markup_stays_visible() -> None:
    encoder, loaded = Encoder(DEMO), AutoTokenizer.from_pretrained(DEMO)
    text = 'Hello, 12 + 345!\n\n<think>\nso\n</think>\n\n<tool_call>\n{"a": "é"}\n</tool_call><|im_end|>'
    ids = encoder.tokenizer.encode(text, add_special_tokens=False).ids
    assert loaded(text)["input_ids"] == ids
    assert loaded.decode(ids, skip_special_tokens=True) == text.removesuffix("<|im_end|>")
    assert (loaded.eos_token, loaded.pad_token, loaded.bos_token) == ("<|im_end|>", "<|endoftext|>", None)


def test_template_gives_the_same_text_in_transformers() -> None:
    loaded, template = AutoTokenizer.from_pretrained(DEMO), ChatTemplate.of(DEMO)
    for sample in islice((sample for sample in samples(5, "train") if not sample.plain), 200):
        text = loaded.apply_chat_template(
            sample.messages,
            tools=sample.tools,
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=sample.thinking,
        )
        assert text == template.prompt(sample)


@pytest.mark.parametrize("arguments", ['{"x": 1}', {"x": 1}])
def test_template_takes_openai_messages(arguments: object) -> None:
    template = ChatTemplate.of(DEMO).template
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "go"}]},
        {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [call, call]},
        {"role": "tool", "tool_call_id": "1", "content": "one"},
        {"role": "tool", "tool_call_id": "1", "content": "two"},
    ]
    text = template.render(messages=messages, tools=None, add_generation_prompt=True)
    block = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'
    results = "\n<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response>"
    assert text == (
        "<|im_start|>user\ngo<|im_end|>\n"
        f"<|im_start|>assistant\n<think>\nhm\n</think>\n\n{block}\n{block}<|im_end|>\n"
        f"<|im_start|>user{results}<|im_end|>\n<|im_start|>assistant\n"
    )


def test_template_drops_reasoning_of_earlier_turns_and_closes_it_when_off() -> None:
    template = ChatTemplate.of(DEMO).template
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "<think>\nlong\n</think>\n\nb"},
        {"role": "user", "content": "c"},
    ]
    text = template.render(messages=messages, add_generation_prompt=True, enable_thinking=False)
    assert "long" not in text
    assert "assistant\nb<|im_end|>" in text
    assert text.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


def test_corpus_is_reproducible_and_its_splits_are_apart() -> None:
    first, second = (list(islice(samples(3, "train"), 50)) for _ in range(2))
    assert first == second
    assert {split_of(f"sum {a}+{b}") for a in range(20) for b in range(20)} == {"train", "test"}


def test_calls_are_written_in_the_format_of_the_template() -> None:
    template = ChatTemplate.of(DEMO).template
    for sample in islice((sample for sample in samples(1, "train") if sample.calls), 50):
        calls = [{"function": {"name": call.name, "arguments": call.arguments}} for call in sample.calls]
        text = template.render(messages=[{"role": "assistant", "tool_calls": calls}])
        assert text == f"<|im_start|>assistant\n{chr(10).join(map(call_text, sample.calls))}<|im_end|>\n"


def test_the_shipped_files_stay_under_their_limit() -> None:
    assert sum(path.stat().st_size for path in DEMO.iterdir()) <= 12_000_000
