"""A Llama and its EAGLE-3 draft in plain torch, without caches: slow, and short enough to be believed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class Checkpoint:
    """A model's config.json and tensors."""

    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]

    @classmethod
    def read(cls, folder: Path) -> Checkpoint:
        tensors: dict[str, Tensor] = {}
        for file in sorted(folder.glob("*.safetensors")):
            tensors |= load_file(file)
        return cls(json.loads((folder / "config.json").read_text()), tensors)

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def linear(self, name: str, x: Tensor) -> Tensor:
        return x @ self[f"{name}.weight"].T

    def norm(self, name: str, x: Tensor) -> Tensor:
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.config["rms_norm_eps"])
        return (scaled * self[f"{name}.weight"].float()).to(x.dtype)

    def attention(self, name: str, x: Tensor) -> Tensor:
        """Causal self-attention over x [tokens, features]."""
        heads, kv_heads = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        q = self._rotated(self._split(f"{name}.q_proj", x, heads))
        k = self._rotated(self._split(f"{name}.k_proj", x, kv_heads))
        k, v = (t.repeat_interleave(heads // kv_heads, 0) for t in (k, self._split(f"{name}.v_proj", x, kv_heads)))
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.linear(f"{name}.o_proj", seen.transpose(0, 1).reshape(len(x), -1))

    def mlp(self, name: str, x: Tensor) -> Tensor:
        gate = functional.silu(self.linear(f"{name}.gate_proj", x))
        return self.linear(f"{name}.down_proj", gate * self.linear(f"{name}.up_proj", x))

    def _split(self, name: str, x: Tensor, heads: int) -> Tensor:
        return self.linear(name, x).view(len(x), heads, -1).transpose(0, 1)

    def _rotated(self, x: Tensor) -> Tensor:
        tokens, size = x.shape[-2:]
        angle = torch.arange(tokens)[:, None] * self.config["rope_theta"] ** (-torch.arange(0, size, 2) / size)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


@dataclass(frozen=True)
class Pair:
    """A target and a draft that reads the outputs of three of its layers."""

    target: Checkpoint
    draft: Checkpoint
    layers: Sequence[int]

    @classmethod
    def read(cls, folder: Path) -> Pair:
        draft = Checkpoint.read(folder / "draft")
        layers = draft.config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
        return cls(Checkpoint.read(folder / "target"), draft, layers)

    def forward(self, ids: Sequence[int]) -> tuple[list[int], Tensor]:
        """For each token, the target's next one, and the features [tokens, 3 hidden]."""
        t, outputs = self.target, []
        x = t["model.embed_tokens.weight"][list(ids)]
        for n in range(t.config["num_hidden_layers"]):
            layer = f"model.layers.{n}"
            x = x + t.attention(f"{layer}.self_attn", t.norm(f"{layer}.input_layernorm", x))
            x = x + t.mlp(f"{layer}.mlp", t.norm(f"{layer}.post_attention_layernorm", x))
            outputs.append(x)
        best = t.linear("lm_head", t.norm("model.norm", x)).argmax(-1)
        return best.tolist(), torch.cat([outputs[n] for n in self.layers], -1)

    def drafts(self, ids: Sequence[int], features: Tensor, depth: int) -> list[int]:
        """The tokens drafted after ids, whose last one the target has no features of yet."""
        d, drafted = self.draft, []
        stream = d.linear("fc", features)
        for _ in range(depth):
            embedded = self.target["model.embed_tokens.weight"][[*ids[1:], *drafted]]
            last = self._step(embedded, stream)[-1:]
            drafted.append(int(d.linear("lm_head", d.norm("norm", last)).argmax()))
            stream = torch.cat([stream, last])
        return drafted

    def _step(self, embedded: Tensor, stream: Tensor) -> Tensor:
        d = self.draft
        both = [d.norm("midlayer.input_layernorm", embedded), d.norm("midlayer.hidden_norm", stream)]
        x = stream + d.attention("midlayer.self_attn", torch.cat(both, -1))
        return x + d.mlp("midlayer.mlp", d.norm("midlayer.post_attention_layernorm", x))

    @torch.inference_mode()
    def speculate(self, prompt: Sequence[int], *, tokens: int, depth: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The continuation, and the drafts accepted by each verify."""
        ids, accepted = list(prompt), []
        best, features = self.forward(ids)
        ids.append(best[-1])
        while len(ids) < len(prompt) + tokens:
            drafted = self.drafts(ids, features[: len(ids) - 1], depth)
            best, features = self.forward([*ids, *drafted])
            right = best[len(ids) - 1 :]
            accepted.append(next((n for n in range(depth) if drafted[n] != right[n]), depth))
            ids += right[: accepted[-1] + 1]
        return tuple(ids[len(prompt) :][:tokens]), tuple(accepted)
