"""An independent EAGLE-3 decoder: what a pair does, told by plain PyTorch and nothing of SGLang.

    python -m tests.kit.decoder fixtures/pairs/tiny-eagle3 perf/prompts/tiny-eagle3.jsonl perf/oracles/tiny-eagle3.json

makes the oracle anew. One request at a time; greedy; chains only (topk 1).
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import linear, silu

DEPTHS = (1, 2, 3, 5, 10)
MAX_TOKENS = 128
WHAT = (
    "verify counts per prompt and number of draft steps (topk 1) from an independent decoder in plain PyTorch; "
    "sha256 of the greedy continuation's text, the same with and without speculation"
)


@dataclass(frozen=True)
class Weights:
    """A checkpoint in Hugging Face's format: its configuration, and its tensors by name, all floats of one kind."""

    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]

    def norm(self, name: str, x: Tensor) -> Tensor:
        """`x` scaled to a root mean square of 1, then by the weights called `name`."""
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.config["rms_norm_eps"])
        return (wide * scale * self.tensors[f"{name}.weight"].float()).to(x.dtype)

    def project(self, name: str, x: Tensor) -> Tensor:
        return linear(x, self.tensors[f"{name}.weight"])


def load(folder: Path, dtype: torch.dtype = torch.float32) -> Weights:
    """The checkpoint in `folder`, of one file or several."""
    config = json.loads((folder / "config.json").read_text())
    tensors = {name: t for file in sorted(folder.glob("*.safetensors")) for name, t in load_file(file).items()}
    return Weights(config, {name: t.to(dtype) if t.is_floating_point() else t for name, t in tensors.items()})


class Cache:
    """Rotated keys, and values, of the positions seen so far: [K, positions, D] each."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        empty = torch.empty(config["num_key_value_heads"], 0, config["head_dim"])
        self.keys, self.values = empty, empty

    def extend(self, start: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values once `keys` and `values` are those from position `start` on; what was there is gone."""
        self.keys = torch.cat((self.keys[:, :start].to(keys), keys), 1)
        self.values = torch.cat((self.values[:, :start].to(values), values), 1)
        return self.keys, self.values


@dataclass(frozen=True)
class Places:
    """Where the T tokens of one forward stand."""

    start: int
    cos: Tensor
    sin: Tensor
    """[T, D/2] each, of the angles position · theta^(−2i/D)."""
    later: Tensor
    """[T, start + T], True where the column's position is after the row's."""

    def rotate(self, x: Tensor) -> Tensor:
        """`x` [heads, T, D], each pair (i, i + D/2) turned by its angle."""
        left, right = x.chunk(2, -1)
        cos, sin = self.cos.to(x), self.sin.to(x)
        return torch.cat((left * cos - right * sin, right * cos + left * sin), -1)


def places(config: Mapping[str, Any], start: int, size: int) -> Places:
    """The places of `size` tokens from position `start` on."""
    half = config["head_dim"] // 2
    positions = torch.arange(start, start + size).unsqueeze(1)
    angles = positions * config["rope_theta"] ** (-torch.arange(half) / half)
    return Places(start, angles.cos(), angles.sin(), torch.arange(start + size) > positions)


def attend(weights: Weights, layer: str, x: Tensor, at: Places, cache: Cache) -> Tensor:
    """Causal self-attention of the new positions `x` [T, width] over all positions up to them."""
    config = weights.config

    def heads(name: str) -> Tensor:
        return weights.project(f"{layer}.self_attn.{name}", x).view(len(x), -1, config["head_dim"]).transpose(0, 1)

    keys, values = cache.extend(at.start, at.rotate(heads("k_proj")), heads("v_proj"))
    group = config["num_attention_heads"] // config["num_key_value_heads"]
    keys, values = keys.repeat_interleave(group, 0), values.repeat_interleave(group, 0)
    scores = at.rotate(heads("q_proj")) @ keys.transpose(1, 2) / config["head_dim"] ** 0.5
    mixed = scores.masked_fill(at.later, float("-inf")).softmax(-1) @ values
    return weights.project(f"{layer}.self_attn.o_proj", mixed.transpose(0, 1).reshape(len(x), -1))


def mlp(weights: Weights, layer: str, x: Tensor) -> Tensor:
    gate = silu(weights.project(f"{layer}.mlp.gate_proj", x))
    return weights.project(f"{layer}.mlp.down_proj", gate * weights.project(f"{layer}.mlp.up_proj", x))


class Target:
    """A Llama, decoding one request."""

    def __init__(self, weights: Weights, aux_layer_ids: Sequence[int]) -> None:
        self.weights, self.aux_layer_ids = weights, aux_layer_ids
        self.caches = [Cache(weights.config) for _ in range(weights.config["num_hidden_layers"])]

    def embed(self, tokens: Sequence[int]) -> Tensor:
        """[T, H]"""
        return self.weights.tensors["model.embed_tokens.weight"][torch.tensor(tokens)]

    def forward(self, tokens: Sequence[int], start: int) -> tuple[list[int], Tensor]:
        """The prediction after each of `tokens`, which stand from `start` on, and their auxiliary features [T, 3H].

        The features are the outputs of the layers that the draft's configuration names, side by side.
        """
        x, features = self.embed(tokens), []
        at = places(self.weights.config, start, len(tokens))
        for i, cache in enumerate(self.caches):
            layer = f"model.layers.{i}"
            x = x + attend(self.weights, layer, self.weights.norm(f"{layer}.input_layernorm", x), at, cache)
            x = x + mlp(self.weights, layer, self.weights.norm(f"{layer}.post_attention_layernorm", x))
            if i in self.aux_layer_ids:
                features.append(x)
        head = "model.embed_tokens" if self.weights.config["tie_word_embeddings"] else "lm_head"
        logits = self.weights.project(head, self.weights.norm("model.norm", x))
        return logits.argmax(-1).tolist(), torch.cat(features, -1)


class Draft:
    """The EAGLE-3 head: one layer over (embedding of a token, feature of the token before it)."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.cache = Cache(weights.config)

    def reduce(self, features: Tensor) -> Tensor:
        """[T, H] from the target's auxiliary features [T, 3H]."""
        return self.weights.project("fc", features)

    def step(self, embedded: Tensor, features: Tensor, start: int) -> tuple[int, Tensor]:
        """The guess after the last position, and that position's own output [1, H], the feature of the next step."""
        weights = self.weights
        tokens = weights.norm("midlayer.input_layernorm", embedded)
        both = torch.cat((tokens, weights.norm("midlayer.hidden_norm", features)), -1)
        at = places(weights.config, start, len(both))
        x = features + attend(weights, "midlayer", both, at, self.cache)
        x = x + mlp(weights, "midlayer", weights.norm("midlayer.post_attention_layernorm", x))
        guess = int(weights.project("lm_head", weights.norm("norm", x[-1:])).argmax())
        return guess + int(weights.tensors["d2t"][guess]), x[-1:]


@dataclass(frozen=True)
class Decoded:
    """A greedy continuation, and how many drafts each verify accepted."""

    tokens: list[int]
    accepted: list[int]


def decode(target: Target, draft: Draft, prompt: Sequence[int], depth: int, max_tokens: int) -> Decoded:
    """The continuation of `prompt` by chains of `depth` drafts; the end-of-text token doesn't stop it.

    `target` and `draft` must be fresh.
    """
    predicted, features = target.forward(prompt, 0)
    tokens, accepted, verified = [predicted[-1]], [], len(prompt)
    unseen, drafted = [*prompt[1:], tokens[0]], 0
    while len(tokens) < max_tokens:
        chain = propose(target, draft, unseen, features, start=drafted, depth=depth)
        drafted += len(unseen)
        predicted, features = target.forward([tokens[-1], *chain], verified)
        right = next((i for i, guess in enumerate(chain) if guess != predicted[i]), depth)
        unseen, features = predicted[: right + 1], features[: right + 1]
        tokens += unseen
        verified += right + 1
        accepted.append(right)
    return Decoded(tokens[:max_tokens], accepted)


def propose(
    target: Target, draft: Draft, unseen: Sequence[int], features: Tensor, *, start: int, depth: int
) -> list[int]:
    """`depth` drafts: the first after the committed tokens that the draft hasn't `unseen`, from the target's features
    of the tokens before them; each later one from the draft's own output."""
    guess, output = draft.step(target.embed(unseen), draft.reduce(features), start)
    chain = [guess]
    for step in range(depth - 1):
        guess, output = draft.step(target.embed([guess]), output, start + len(unseen) + step)
        chain.append(guess)
    return chain


@dataclass(frozen=True)
class Pair:
    """What decodes: the two checkpoints, the layers whose outputs the draft gets, and the target's tokenizer."""

    target: Weights
    draft: Weights
    layers: Sequence[int]
    tokenizer: Tokenizer

    @torch.inference_mode()
    def decode(self, prompt: Sequence[int], depth: int, max_tokens: int) -> Decoded:
        """`decode` with nothing in the caches."""
        return decode(Target(self.target, self.layers), Draft(self.draft), prompt, depth, max_tokens)

    @torch.inference_mode()
    def forward(self, tokens: Sequence[int]) -> tuple[list[int], Tensor]:
        """`Target.forward` with nothing in the caches."""
        return Target(self.target, self.layers).forward(tokens, 0)

    @torch.inference_mode()
    def draft_after(self, tokens: Sequence[int], features: Tensor) -> int:
        """The first draft after `tokens`, from features of all of them but the last."""
        target, draft = Target(self.target, self.layers), Draft(self.draft)
        return propose(target, draft, tokens[1:], features, start=0, depth=1)[0]


def load_pair(folder: Path, dtype: torch.dtype = torch.float32) -> Pair:
    """The pair in `folder`/target and `folder`/draft, which computes in this type."""
    draft = load(folder / "draft", dtype)
    layers = draft.config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
    tokenizer = Tokenizer.from_file(str(folder / "target" / "tokenizer.json"))
    return Pair(load(folder / "target", dtype), draft, layers, tokenizer)


def oracle_entry(pair: Pair, text: str, depths: Iterable[int] = DEPTHS, max_tokens: int = MAX_TOKENS) -> dict[str, Any]:
    """What an oracle holds about one prompt.

    Raises ValueError where depths disagree on the text, which greedy decoding rules out.
    """
    prompt = pair.tokenizer.encode(text).ids
    decoded = {depth: pair.decode(prompt, depth, max_tokens) for depth in depths}
    texts = {pair.tokenizer.decode(one.tokens) for one in decoded.values()}
    if len(texts) > 1:
        raise ValueError(f"the greedy text depends on the depth for the prompt {text[:60]!r}")
    return {
        "prompt_tokens": len(prompt),
        "verifies": {str(depth): len(one.accepted) for depth, one in decoded.items()},
        "accepted_drafts_histogram": {
            str(depth): [one.accepted.count(drafts) for drafts in range(depth + 1)] for depth, one in decoded.items()
        },
        "text_sha256": hashlib.sha256(texts.pop().encode()).hexdigest(),
    }


def oracle(pair: Pair, prompts: Mapping[str, str]) -> dict[str, Any]:
    """The whole oracle of `prompts`, texts by id."""
    return {
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "dtype": "float32",
        "tokenised": "by the target's tokenizer, whose post-processor adds the BOS token",
        "what": WHAT,
        "prompts": {name: oracle_entry(pair, text) for name, text in prompts.items()},
    }


def read_prompts(path: Path) -> dict[str, str]:
    """Texts by id."""
    records = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    return {record["id"]: record["text"] for record in records}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.kit.decoder", description=__doc__)
    parser.add_argument("pair", type=Path, help="folder with target/ and draft/")
    parser.add_argument("prompts", type=Path, help="prompts, one JSON object a line")
    parser.add_argument("oracle", type=Path, help="the file to write")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    made = oracle(load_pair(arguments.pair), read_prompts(arguments.prompts))
    arguments.oracle.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
