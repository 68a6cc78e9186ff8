"""Headers of a model's weights: files that can't be loaded, and drafts that fuse another number of layers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from fixtures.pairs.checkpoint import INDEX, Fusing, Weights, fused_otherwise, read
from fixtures.pairs.configs import Config

TINY = Path(__file__).resolve().parent.parent / "fixtures" / "pairs" / "tiny-eagle3"
POINTER = (
    b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32\nsize 12345\n"
)
DRAFT = (TINY / "draft" / "model.safetensors").read_bytes()
GIB = 2**30


def shard(file: Path, tensors: dict[str, Any], size: int) -> None:
    """A file whose header is this and whose data, of so many bytes, takes no room."""
    text = json.dumps({"__metadata__": {"format": "pt"}, **tensors}).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text)
    with file.open("r+b") as opened:
        opened.truncate(8 + len(text) + size)


def test_the_tiny_pair_is_whole_and_its_draft_fuses_three_layers() -> None:
    assert read(TINY / "target") == Weights()
    draft = TINY / "draft"
    assert read(draft) == Weights(fusing=Fusing("fc.weight", draft / "model.safetensors", 3 * 256))


def test_a_folder_without_weights_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"another format")
    assert read(tmp_path) == Weights()


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (DRAFT[:-1], f"has {len(DRAFT) - 1} bytes, and {len(DRAFT)} by its header: it was cut off; fetch it anew"),
        (DRAFT + b"0", f"has {len(DRAFT) + 1} bytes, and {len(DRAFT)} by its header: something was added; fetch it"),
        (DRAFT[:100], "ends in the middle of its header, at byte 100; fetch it anew"),
        (b"", "ends in the middle of its header, at byte 0; fetch it anew"),
        (b"<!DOCTYPE html>" * 100, "is no safetensors file, for it begins with no header; fetch it anew"),
        (b"\2\0\0\0\0\0\0\0[]", "is no safetensors file, for it begins with no header; fetch it anew"),
        (b'\7\0\0\0\0\0\0\0{"a":1}', "is no safetensors file, for it begins with no header; fetch it anew"),
    ],
)
def test_a_file_that_cannot_be_loaded_is_named(tmp_path: Path, content: bytes, told: str) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(content)
    (problem,) = read(tmp_path).problems
    assert problem.startswith(f"{file}: {told}")


def test_pointers_of_git_lfs_are_named_as_such_in_one_line(tmp_path: Path) -> None:
    for n in range(1, 5):
        (tmp_path / f"model-{n}.safetensors").write_bytes(POINTER)
    (problem,) = read(tmp_path).problems
    assert problem == (
        f"{tmp_path}: has Git LFS pointers instead of weights (model-1.safetensors, model-2.safetensors, "
        "model-3.safetensors, …); run git lfs pull there"
    )


def test_sixty_four_shards_of_four_gib_are_looked_at_without_reading_them(tmp_path: Path) -> None:
    for n in range(64):
        about = {"dtype": "BF16", "shape": [2, GIB], "data_offsets": [0, 4 * GIB]}
        shard(tmp_path / f"model-{n:05d}-of-00064.safetensors", {f"model.layers.{n}.weight": about}, 4 * GIB)
    assert read(tmp_path) == Weights()


def test_of_an_indexed_model_its_own_files_count(tmp_path: Path) -> None:
    shutil.copy(TINY / "draft" / "model.safetensors", tmp_path / "a.safetensors")
    (tmp_path / "stray.safetensors").write_bytes(b"")
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"fc.weight": "a.safetensors"}}))
    assert read(tmp_path).problems == ()
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"x": "b.safetensors", "fc.weight": "a.safetensors"}}))
    assert read(tmp_path).problems == (
        f"{tmp_path / INDEX}: names files that aren't there (b.safetensors); fetch the rest of the model",
    )


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": 1}'])
def test_an_index_that_is_none_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / INDEX).write_text(text)
    (problem,) = read(tmp_path).problems
    assert problem.startswith(f"{tmp_path / INDEX}: can't be read (")


def test_consolidated_weights_beside_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "consolidated.safetensors").write_bytes(b"")
    assert len(read(tmp_path).problems) == 1
    shutil.copy(TINY / "draft" / "model.safetensors", tmp_path)
    assert read(tmp_path).problems == ()


def config(**changes: Any) -> Config:
    return Config("d", json.loads((TINY / "draft" / "config.json").read_text()) | changes)


def eagle(*ids: int) -> dict[str, Any]:
    return {"eagle_config": {"eagle_aux_hidden_state_layer_ids": list(ids)}}


def fusing(width: int) -> Fusing:
    return Fusing("fc.weight", Path("w"), width)


def test_weights_for_another_number_of_layers_than_the_ids_are_told() -> None:
    (line,) = fused_otherwise(config(**eagle(1, 2)), fusing(768))
    assert line == (
        "d: eagle_config.eagle_aux_hidden_state_layer_ids = [1, 2]: names 2 layers, and fc.weight in w takes the 768 "
        "features of 3; write the ids that the draft was trained with"
    )
    (line,) = fused_otherwise(config(eagle_config=None), fusing(512))
    assert line.startswith("d: eagle_config.eagle_aux_hidden_state_layer_ids: is missing, which stands for 3 layers")


@pytest.mark.parametrize(
    ("draft", "width"),
    [
        (config(), 768),
        (config(eagle_config=None), 768),
        (config(target_hidden_size=512), 3 * 512),
        (config(**eagle(1, 2)), 512),
        pytest.param(config(**eagle(1, 2), num_aux_hidden_states=3), 768, id="a-number-of-its-own"),
        pytest.param(config(**eagle(1, 2), architectures=["Eagle3SomethingNew"]), 768, id="an-unknown-loader"),
    ],
)
def test_what_fits_and_what_is_not_sure_is_not_told(draft: Config, width: int) -> None:
    assert [*fused_otherwise(draft, fusing(width))] == []


def test_a_packed_weight_tells_nothing(tmp_path: Path) -> None:
    packed = {"dtype": "I32", "shape": [256, 96], "data_offsets": [0, 256 * 96 * 4]}
    shard(tmp_path / "model.safetensors", {"fc.weight": packed}, 256 * 96 * 4)
    assert read(tmp_path) == Weights()
    assert [*fused_otherwise(config(**eagle(1, 2)), None)] == []
