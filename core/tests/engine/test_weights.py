"""Loading checkpoints: packed, sharded, tied, cast; and one clear message for each way in which files may be wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from llmk.api import Checkpoint, CheckpointError
from llmk.engine.device import file_reader
from llmk.engine.execution import weights
from llmk.engine.execution.weights import load_weights
from llmk.nn import Build, Layer, Parameter
from llmk.planning.checkpoint.folder import read_checkpoint


class RecordingLayer(Layer):
    """A real layer that keeps what it was given, in a list that all layers of a model share."""

    def __init__(self, build: Build, *parameters: Parameter, finished: list[RecordingLayer]) -> None:
        self.finished = finished
        super().__init__(build, parameters)

    def finish(self) -> None:
        self.tensors = [parameter.take() for parameter in self.parameters]
        self.finished.append(self)


class PackedModel:
    """An embedding, two packed layers with a bias, and a norm."""

    ignored_weights = (r".*\.inv_freq",)

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        plan: Any = SimpleNamespace(shadows=(), quantization=(), variants=())
        self.build = Build(plan, dtype=dtype, device=torch.device("cpu"), load_object=lambda path: path)
        self.finished: list[RecordingLayer] = []
        self.add(Parameter(self.build, ["embed.weight"], [11], (4,), aliases={"head.weight": (0,)}))
        for i in range(2):
            names = [f"layers.{i}.{part}" for part in ("q", "k", "v")]
            packed = {f"layers.{i}.qkv.weight": (0, 1, 2)}
            self.add(
                Parameter(self.build, [f"{name}.weight" for name in names], (4, 2, 2), (4,), aliases=packed),
                Parameter(self.build, [f"{name}.bias" for name in names], (4, 2, 2)),
            )
        self.add(Parameter(self.build, ["norm.weight"], [4], dummy_std=None))
        self.weights = self.build.layers

    def add(self, *parameters: Parameter) -> None:
        RecordingLayer(self.build, *parameters, finished=self.finished)

    @property
    def tensors(self) -> list[Tensor]:
        """What all layers were given, in the model's order."""
        return [tensor for layer in self.weights for tensor in layer.tensors]  # type: ignore[attr-defined]


def make_tensors() -> dict[str, Tensor]:
    torch.manual_seed(0)
    tensors = {"embed.weight": torch.randn(11, 4), "norm.weight": torch.randn(4)}
    for i in range(2):
        for part, rows in (("q", 4), ("k", 2), ("v", 2)):
            tensors[f"layers.{i}.{part}.weight"] = torch.randn(rows, 4)
            tensors[f"layers.{i}.{part}.bias"] = torch.randn(rows)
    return tensors


def packed(tensors: dict[str, Tensor]) -> list[Tensor]:
    """What a correct load gives."""
    layers = [
        torch.cat([tensors[f"layers.{i}.{part}.{name}"] for part in ("q", "k", "v")])
        for i in range(2)
        for name in ("weight", "bias")
    ]
    return [tensors["embed.weight"], *layers, tensors["norm.weight"]]


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Checkpoint]:
    """Writes tensors as a checkpoint; several dicts become the files of an index."""

    def write(*files: dict[str, Tensor]) -> Checkpoint:
        (tmp_path / "config.json").write_text(json.dumps({"architectures": ["PackedForCausalLM"]}))
        if len(files) == 1:
            save_file(files[0], tmp_path / "model.safetensors")
        else:
            weight_map = {}
            for i, tensors in enumerate(files):
                name = f"model-{i + 1}-of-{len(files)}.safetensors"
                save_file(tensors, tmp_path / name)
                weight_map |= dict.fromkeys(tensors, name)
            (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
        return read_checkpoint(tmp_path)

    return write


def load(checkpoint: Checkpoint, dtype: torch.dtype = torch.float32, **options: object) -> PackedModel:
    model = PackedModel(dtype)
    load_weights(model, checkpoint, dtype, progress=False, **options)  # type: ignore[arg-type]
    return model


def equal(found: list[Tensor], expected: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_packs_shards(write: Callable[..., Checkpoint]) -> None:
    tensors = make_tensors()
    assert equal(load(write(tensors)).tensors, packed(tensors))


def test_a_layer_may_span_files(write: Callable[..., Checkpoint]) -> None:
    tensors = make_tensors()
    names = sorted(tensors)
    files = [{name: tensors[name] for name in names[i::12]} for i in range(12)]
    checkpoint = write(*files)
    assert [file.name.split("-")[1] for file in checkpoint.weight_files] == [str(i + 1) for i in range(12)]
    assert equal(load(checkpoint).tensors, packed(tensors))


def test_takes_a_tensor_that_is_stored_packed(write: Callable[..., Checkpoint]) -> None:
    tensors = make_tensors()
    expected = packed(tensors)
    tensors["layers.0.qkv.weight"] = torch.cat([tensors.pop(f"layers.0.{part}.weight") for part in ("q", "k", "v")])
    assert equal(load(write(tensors)).tensors, expected)


def test_a_tied_table_may_be_stored_under_either_name(write: Callable[..., Checkpoint]) -> None:
    tensors = make_tensors()
    expected = packed(tensors)
    tensors["head.weight"] = tensors.pop("embed.weight")
    assert equal(load(write(tensors)).tensors, expected)
    tensors["embed.weight"] = tensors["head.weight"].clone()
    assert equal(load(write(tensors)).tensors, expected)


def test_casts_to_the_engine_dtype(write: Callable[..., Checkpoint]) -> None:
    tensors = make_tensors()
    model = load(write({name: tensor.double() for name, tensor in tensors.items()}), torch.bfloat16)
    assert equal(model.tensors, [tensor.bfloat16() for tensor in packed(tensors)])


def test_finishes_each_layer_once_and_as_soon_as_it_is_complete(write: Callable[..., Checkpoint]) -> None:
    tensors = make_tensors()
    first = {name: tensor for name, tensor in tensors.items() if not name.startswith("layers.0")}
    model = load(write(first, {name: tensor for name, tensor in tensors.items() if name not in first}))
    assert len(model.finished) == len(model.weights)
    assert model.finished[-1] is model.weights[1]


def test_ignores_what_the_model_says_it_has_no_use_for(write: Callable[..., Checkpoint]) -> None:
    tensors = make_tensors()
    load(write({**tensors, "layers.0.rotary.inv_freq": torch.ones(2)}))


def test_dummy_weights_come_from_the_seed_alone(write: Callable[..., Checkpoint]) -> None:
    checkpoint = write(make_tensors())
    once, again, other = (load(checkpoint, load_format="dummy", seed=seed).tensors for seed in (1, 1, 2))
    assert equal(once, again)
    assert not torch.equal(once[0], other[0])
    assert equal(once[-1:], [torch.ones(4)])
    assert once[0].std().item() == pytest.approx(0.02, rel=0.4)


def test_missing_tensors_are_listed_up_to_ten(write: Callable[..., Checkpoint]) -> None:
    tensors = make_tensors()
    del tensors["layers.1.k.weight"]
    with pytest.raises(
        CheckpointError, match=r"\(model\.safetensors\) lacks 1 .* PackedForCausalLM .*layers\.1\.k\.weight"
    ):
        load(write(tensors))
    few = {name: tensors[name] for name in ("embed.weight", "norm.weight")}
    with pytest.raises(CheckpointError, match=r"lacks 12 .* and 2 more"):
        load(write(few))


def test_unexpected_tensors_are_named(write: Callable[..., Checkpoint]) -> None:
    with pytest.raises(CheckpointError, match=r"holds 1 tensors .*layers\.2\.q\.weight") as caught:
        load(write({**make_tensors(), "layers.2.q.weight": torch.ones(4, 4)}))
    assert "config.json" in caught.value.hint


def test_a_renamed_tensor_shows_as_missing_and_as_unexpected(write: Callable[..., Checkpoint]) -> None:
    tensors = make_tensors()
    tensors["final_norm.weight"] = tensors.pop("norm.weight")
    with pytest.raises(CheckpointError, match=r"lacks 1 .*: norm\.weight\. It holds 1 .*: final_norm\.weight"):
        load(write(tensors))


def test_wrong_shape_says_both(write: Callable[..., Checkpoint]) -> None:
    with pytest.raises(CheckpointError, match=re.escape("has shape [5, 4], not [4, 4]")):
        load(write({**make_tensors(), "layers.0.q.weight": torch.ones(5, 4)}))


def test_a_quantized_tensor_in_a_plain_place_is_refused(write: Callable[..., Checkpoint]) -> None:
    tensors = make_tensors()
    tensors["layers.0.q.weight"] = tensors["layers.0.q.weight"].to(torch.int8)
    with pytest.raises(CheckpointError, match="stored as I8") as caught:
        load(write(tensors))
    assert "quantization" in caught.value.hint


def test_a_truncated_file_is_noticed_before_anything_is_read(write: Callable[..., Checkpoint]) -> None:
    checkpoint = write(make_tensors())
    file = checkpoint.weight_files[0].path
    data = file.read_bytes()
    file.write_bytes(data[:-10])
    last = max(load_layout(data).items(), key=lambda item: item[1])[0]
    message = f"truncated: it has {len(data) - 10:,} of {len(data):,} bytes, so {last}"
    model = PackedModel()
    with pytest.raises(CheckpointError, match=re.escape(message)):
        load_weights(model, checkpoint, torch.float32, progress=False)  # type: ignore[arg-type]
    assert model.finished == []


def load_layout(data: bytes) -> dict[str, int]:
    """Where each tensor of a safetensors file ends."""
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return {name: entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:20], "is not a whole safetensors file"),
        (lambda data: b"", "is not a whole safetensors file"),
        (lambda data: data[:8] + b"x" + data[9:], "has a damaged header"),
        (lambda data: b"<html>404 not found</html>", "is not a whole safetensors file"),
    ],
)
def test_a_damaged_file_is_named(
    write: Callable[..., Checkpoint], damage: Callable[[bytes], bytes], message: str
) -> None:
    checkpoint = write(make_tensors())
    file = checkpoint.weight_files[0].path
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(CheckpointError, match=f"{re.escape(str(file))} {message}"):
        load(checkpoint)


def test_a_missing_file_of_the_index_is_named(write: Callable[..., Checkpoint]) -> None:
    tensors = make_tensors()
    names = sorted(tensors)
    checkpoint = write({name: tensors[name] for name in names[:5]}, {name: tensors[name] for name in names[5:]})
    checkpoint.weight_files[1].path.unlink()
    with pytest.raises(CheckpointError, match=r"lacks 1 of the 2 files .*model-2-of-2\.safetensors"):
        load(checkpoint)


def test_no_weights_at_all(write: Callable[..., Checkpoint]) -> None:
    checkpoint = write(make_tensors())
    checkpoint.weight_files[0].path.unlink()
    (checkpoint.path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"no safetensors file; it has pytorch_model\.bin"):
        load(read_checkpoint(checkpoint.path))


def test_two_files_with_one_tensor_are_refused(write: Callable[..., Checkpoint]) -> None:
    checkpoint = write(make_tensors())
    save_file(load_file(checkpoint.weight_files[0].path), checkpoint.path / "model-copy.safetensors")
    with pytest.raises(CheckpointError, match=r"is stored in model-copy\.safetensors and in model\.safetensors"):
        load(read_checkpoint(checkpoint.path))


def test_the_bar_shows_on_terminals_only(
    write: Callable[..., Checkpoint], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    checkpoint = write(make_tensors())
    load_weights(PackedModel(), checkpoint, torch.float32)  # type: ignore[arg-type]
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    load_weights(PackedModel(), checkpoint, torch.float32)  # type: ignore[arg-type]
    assert "Loading weights" in capsys.readouterr().err
    load_weights(PackedModel(), checkpoint, torch.float32, progress=False)  # type: ignore[arg-type]
    assert capsys.readouterr().err == ""


def test_a_share_is_read_and_no_more(write: Callable[..., Checkpoint], monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of one tensor, columns of another, some experts' rows of a stacked one, and nothing of other stages."""
    tensors = {
        "up.weight": torch.randn(8, 4),
        "down.weight": torch.randn(4, 8),
        "experts.gate_up_proj": torch.randn(3, 4, 5),
        "elsewhere.weight": torch.randn(9, 9),
    }
    model = PackedModel()
    del model.build.layers[:]
    model.add(
        Parameter(model.build, ["up.weight"], [8], [4], kept_rows=[[slice(4, 8)]]),
        Parameter(model.build, ["down.weight"], [4], [8], kept_columns=slice(2, 4)),
        Parameter(
            model.build,
            [f"experts.{expert}.{part}.weight" for expert in range(3) for part in ("gate", "up")],
            [2] * 6,
            [5],
            aliases={"experts.gate_up_proj": tuple(range(6))},
            stacks=3,
            kept_rows=[[slice(1, 2)]] * 6,
        ),
    )
    with model.build.stage(False):
        model.add(Parameter(model.build, ["elsewhere.weight"], [9], [9]))
    read: list[int] = []
    fill = file_reader._fill

    def counted(chunk: file_reader.Chunk, *into: Any) -> None:
        read.append(chunk.num_bytes)
        fill(chunk, *into)

    monkeypatch.setattr(file_reader, "_fill", counted)
    load_weights(model, write(tensors), torch.float32, progress=False)
    (layer,) = model.finished
    up, down, experts = layer.tensors
    assert torch.equal(up, tensors["up.weight"][4:])
    assert torch.equal(down, tensors["down.weight"][:, 2:4])
    assert torch.equal(experts, tensors["experts.gate_up_proj"][:, 1::2])
    assert sum(read) == up.nbytes + down.nbytes + experts.nbytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensors_are_read_in_pieces(
    write: Callable[..., Checkpoint], monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    """Pieces of a row and a half at most, and of one row where that is more; no more than some on their way."""
    monkeypatch.setattr(weights, "CHUNK_BYTES", 24)
    monkeypatch.setattr(file_reader, "CHUNK_BYTES", 24)
    monkeypatch.setattr(file_reader, "_AHEAD_BYTES", 100)
    tensors = make_tensors()
    assert equal(load(write(tensors), dtype).tensors, [tensor.to(dtype) for tensor in packed(tensors)])


def test_many_small_tensors(write: Callable[..., Checkpoint], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is loaded once, in the files' order, and few are ahead of the layer that is being finished."""
    monkeypatch.setattr(file_reader, "_AHEAD_BYTES", 64)
    model = PackedModel()
    del model.build.layers[:]
    for i in range(500):
        model.add(Parameter(model.build, [f"n{i:03d}.a", f"n{i:03d}.b"], [3, 1]))
    tensors = {f"n{i:03d}.{part}": torch.randn(3 if part == "a" else 1) for i in range(500) for part in "ab"}
    started: list[int] = []
    storage = Parameter._storage
    monkeypatch.setattr(Parameter, "_storage", lambda self: (started.append(len(model.finished)), storage(self))[1])
    load_weights(model, write(tensors), torch.float32, progress=False)
    assert model.finished == model.build.layers
    for i, tensor in enumerate(model.tensors):
        assert torch.equal(tensor, torch.cat([tensors[f"n{i:03d}.a"], tensors[f"n{i:03d}.b"]]))
    assert max(number // 4 - finished for number, finished in enumerate(started)) < 10


def test_a_file_that_is_cut_meanwhile_is_named(
    write: Callable[..., Checkpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = write(make_tensors())
    file = checkpoint.weight_files[0].path
    headers = weights.stored_tensors(checkpoint)
    monkeypatch.setattr(weights, "stored_tensors", lambda checkpoint: headers)
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(CheckpointError, match=re.escape(f"{file} can't be read: it ends")):
        load(checkpoint)
    file.unlink()
    with pytest.raises(CheckpointError, match=re.escape(f"{file} can't be read: ")):
        load(checkpoint)


def mapped_file(tensor: Tensor) -> str:
    """The file whose pages hold a tensor, or ``""``."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, _, _, _, *path = line.split(maxsplit=5)
        start, stop = (int(part, 16) for part in span.split("-"))
        if start <= tensor.data_ptr() < stop:
            return path[0] if path and path[0].startswith("/") else ""
    return ""


def test_what_a_file_holds_as_it_is_used_stays_there(
    write: Callable[..., Checkpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table, a packed weight, and one whose parts follow on each other; not one whose parts lie apart."""
    monkeypatch.setattr(file_reader, "_WORTH_MAPPING", 1)
    tensors = make_tensors()
    whole = torch.cat([tensors.pop(f"layers.0.{part}.weight") for part in ("q", "k", "v")])
    checkpoint = write(tensors | {"layers.0.qkv.weight": whole})
    file, model = checkpoint.weight_files[0].path, PackedModel()
    before = file.read_bytes()
    loaded = load_weights(model, checkpoint, torch.float32, progress=False)  # type: ignore[arg-type]
    embed, packed_weight, _, apart, *_, norm = model.tensors
    assert torch.equal(embed, tensors["embed.weight"])
    assert torch.equal(packed_weight, whole)
    assert torch.equal(apart, torch.cat([tensors[f"layers.1.{part}.weight"] for part in ("q", "k", "v")]))
    assert [mapped_file(each) for each in (embed, packed_weight, norm)] == [str(file)] * 3
    assert mapped_file(apart) == "", "the file has k before q"
    assert loaded.in_files >= embed.nbytes + whole.nbytes + norm.nbytes
    embed.zero_()
    assert file.read_bytes() == before
    assert load_weights(PackedModel(torch.bfloat16), checkpoint, torch.bfloat16, progress=False).in_files == 0  # type: ignore[arg-type]


def test_a_layer_that_makes_a_copy_keeps_no_file(
    write: Callable[..., Checkpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_reader, "_WORTH_MAPPING", 1)
    monkeypatch.setattr(RecordingLayer, "finish", lambda self: [parameter.take() for parameter in self.parameters])
    loaded = load_weights(PackedModel(), write(make_tensors()), torch.float32, progress=False)  # type: ignore[arg-type]
    assert loaded == (sum(tensor.nbytes for tensor in make_tensors().values()), 0)


def test_layers_that_know_the_same_name_all_get_the_tensor(write: Callable[..., Checkpoint]) -> None:
    """As a block does that several layers use, in parts of them that are built for each."""
    tensors = make_tensors()
    model = PackedModel()
    model.add(Parameter(model.build, ["layers.0.q.weight"], [4], (4,)))
    model.add(Parameter(model.build, ["norm.weight"], [4]))
    load_weights(model, write(tensors), torch.float32, progress=False)  # type: ignore[arg-type]
    expected = [*packed(tensors), tensors["layers.0.q.weight"], tensors["norm.weight"]]
    assert all(torch.equal(*pair) for pair in zip(model.tensors, expected, strict=True))


def test_a_name_that_several_layers_lack_is_named_once(write: Callable[..., Checkpoint]) -> None:
    model = PackedModel()
    model.add(Parameter(model.build, ["norm.weight"], [4]))
    stored = {name: tensor for name, tensor in make_tensors().items() if name != "norm.weight"}
    with pytest.raises(CheckpointError, match=r"lacks 1 of the tensors .*: norm\.weight\n"):
        load_weights(model, write(stored), torch.float32, progress=False)  # type: ignore[arg-type]
