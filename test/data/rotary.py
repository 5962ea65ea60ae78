#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes rotary.safetensors: norms of heads with their rotation, by the attention of transformers
and diffusers themselves. Needs the packages of VERSIONS in models.py, no network and no GPU.

A model's attention runs until q and k meet, with its own norms and its own tables; its projections
give x, which has so few bits that the order of a sum of squares shows in no result."""

import importlib
import itertools

import torch
from models import (
    FOLDER,
    TYPES,
    Gives,
    check_vectors,
    of_transformers,
    require_versions,
    same,
    to_array,
    with_weight,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

BATCH, TOKENS, HEADS = 2, 2, 2
POSITIONS = torch.tensor([[0, 37], [500, 4095]])


class Reached(Exception):
    """Has q and k, where they meet."""


def reach(q, k, *_, **__):
    raise Reached(q, k)


ALL_ATTENTION_FUNCTIONS.register(
    "reach", lambda _, q, k, *__, **___: reach(q.transpose(1, 2), k.transpose(1, 2))
)


def until_attention(attention, *given, **named):
    try:
        attention(*given, **named)
    except Reached as reached:
        return reached.args
    raise SystemExit("an attention did not begin")


# A system takes x [batch, tokens, heads, d] and a weight, of a head or of all. It returns x after
# the norm and the rotation, and the tables of its model: cos and sin of [batch, tokens, pairs].


def parts_of(path, x, layer=None, config=None, **settings):
    """Returns an attention of transformers, by its model and the prefix of its classes, and tables
    for POSITIONS. A model may have tables for each kind of layer."""
    model, prefix = path.split(".")
    names = prefix + "Attention", prefix + "RotaryEmbedding", config or prefix + "Config"
    attention, tables, config_class = (of_transformers(f"{model}.{name}") for name in names)
    sizes = {"num_hidden_layers": 1, "num_attention_heads": HEADS, "num_key_value_heads": HEADS}
    config = config_class(hidden_size=8, head_dim=x.shape[-1], **sizes, **settings)
    config._attn_implementation = "reach"  # pylint: disable=protected-access
    return attention(config, layer_idx=0), tables(config)(x, POSITIONS, *([layer] if layer else []))


def heads(*paths, layer=None, config=None, **settings):
    """Attentions with q_norm and k_norm, which share a row. Some make a gate with q."""
    settings |= {"layer_types": [layer]} if layer else {}

    def compute_one(path, x, weight):
        attention, tables = parts_of(path, x, layer, config, **settings)
        for norm in (attention.q_norm, attention.k_norm):
            with_weight(norm, weight.flatten())
        for name in ("q_proj", "k_proj", "v_proj"):
            has_gate = getattr(attention, name).out_features == 2 * x[0, 0].numel()
            rows = torch.cat((x, x), dim=-1) if has_gate else x
            setattr(attention, name, Gives(rows.flatten(2)))
        given = {"position_embeddings": tables, "attention_mask": None}
        given |= {"shared_kv_states": {}} if path.startswith("gemma4.") else {}
        y = same(until_attention(attention, x[:, :, 0], **given))
        return y, *(table[..., : table.shape[-1] // 2] for table in tables)

    def compute(x, weight):
        return tuple(map(same, zip(*(compute_one(path, x, weight) for path in paths))))

    return compute


def deepseek_v4(x, weight=None):
    """The norm of q has no weight. kv has one head, with a weight."""
    settings = {"layer_types": ["sliding_attention"], "partial_rotary_factor": 0.25}
    attention, tables = parts_of("deepseek_v4.DeepseekV4", x, "main", **settings)
    attention.q_a_norm = attention.q_a_proj = Gives(None)
    attention.q_b_proj = Gives(x.flatten(2))
    if weight is not None:
        with_weight(attention.kv_norm, weight)
    y = []
    for head in range(HEADS):
        attention.kv_proj = Gives(x[:, :, head])
        q, kv = until_attention(attention, x[:, :, 0], {"main": tables}, POSITIONS, None)
        y.append(q[:, :, head] if weight is None else kv[:, :, 0])
    return torch.stack(y, dim=2), *tables


def of_diffusers(file):
    """Returns a module of diffusers, whose attention ends in reach()."""
    module = importlib.import_module(f"diffusers.models.transformers.{file}")
    module.dispatch_attention_fn = reach
    return module


def with_projections(attention, x, weight):
    for norm in (attention.norm_q, attention.norm_k):
        with_weight(norm, weight)
    for name in ("to_q", "to_k", "to_v"):
        setattr(attention, name, Gives(x.flatten(2)))
    return attention


def flux(x, weight):
    """All samples have the positions of the first."""
    module, d = of_diffusers("transformer_flux"), x.shape[-1]
    attention = with_projections(module.FluxAttention(8, HEADS, d, eps=1e-6), x, weight)
    tables = module.FluxPosEmbed(10000, [d])(POSITIONS[0][:, None])
    y = same(until_attention(attention, x[:, :, 0], image_rotary_emb=tables))
    return y, *(table[:, ::2].expand(BATCH, -1, -1) for table in tables)


def z_image(x, weight):
    module, d = of_diffusers("transformer_z_image"), x.shape[-1]
    processor = module.ZSingleStreamAttnProcessor()
    sizes = {"heads": HEADS, "dim_head": d, "qk_norm": "rms_norm", "eps": 1e-5}
    attention = with_projections(module.Attention(8, processor=processor, **sizes), x, weight)
    angles = module.RopeEmbedder(256.0, [d], [4096])(POSITIONS.view(-1, 1))
    angles = angles.view(BATCH, TOKENS, -1)
    return same(until_attention(attention, x[:, :, 0], freqs_cis=angles)), angles.real, angles.imag


QWEN3 = heads("qwen3.Qwen3", "qwen3_moe.Qwen3Moe")
LLAMA = "rounding=before_weight"
NEIGHBOURS = "rotary_pairs=neighbours"
NORM = "rotary_rounding=norm"
OF_DEEPSEEK_V4 = f"eps=1e-06 {NEIGHBOURS} rotary_part=end {NORM}"

#: Lengths of rows, the options and the system, by the names in doc/migration.md.
SYSTEMS = {
    "qwen3": ((2, 128), f"eps=1e-06 {LLAMA}", QWEN3),
    "qwen3_f32_tables": ((64,), f"eps=1e-06 {LLAMA}", QWEN3),
    "qwen3_in_f32": ((64,), "eps=1e-06 rotary_rounding=none", QWEN3),
    "gemma3": (
        (256,),
        "eps=1e-06 weight_offset=1",
        heads("gemma3.Gemma3", layer="sliding_attention", config="Gemma3TextConfig"),
    ),
    "gemma4": (
        (64,),
        "eps=1e-06",
        heads("gemma4.Gemma4Text", layer="full_attention", global_head_dim=64),
    ),
    "qwen3_next": ((64,), "eps=1e-06 weight_offset=1", heads("qwen3_next.Qwen3Next")),
    "glm4_moe": ((64,), f"eps=1e-05 {LLAMA}", heads("glm4_moe.Glm4Moe", use_qk_norm=True)),
    "pe_audio": ((64,), f"eps=1e-05 {LLAMA} {NEIGHBOURS}", heads("pe_audio.PeAudioEncoder")),
    "lfm3": ((64,), f"eps=1e-05 {LLAMA} {NORM}", heads("lfm3.Lfm3", layer="full_attention")),
    "olmo2": ((64,), f"eps=1e-05 divisor=128 {NORM}", heads("olmo2.Olmo2")),
    "minimax_m2": (
        (64,),
        f"eps=1e-06 divisor=128 {LLAMA}",
        heads("minimax_m2.MiniMaxM2", partial_rotary_factor=0.5),
    ),
    "deepseek_v4_q": ((64,), f"{OF_DEEPSEEK_V4} rounding=inverse", deepseek_v4),
    "deepseek_v4_kv": ((64,), OF_DEEPSEEK_V4, deepseek_v4),
    "flux": ((64,), f"eps=1e-06 {NEIGHBOURS} {NORM}", flux),
    "z_image": ((64,), f"eps=1e-05 {LLAMA} {NEIGHBOURS} {NORM}", z_image),
}


def tensors_of(name, d, number, dtype):
    """Returns the inputs and y by operand."""
    _, options, system = SYSTEMS[name]
    generator = torch.Generator().manual_seed(3 * d + number)
    shape = (BATCH, TOKENS, HEADS, d)
    x = (torch.randint(-16, 17, shape, generator=generator) / 8).to(dtype)
    if name != "pe_audio":  # it adds the products to +0
        x[0, 0, 0, ::7] = -0.0
    of_all_heads = "divisor" in options
    weight = 1 + 0.2 * torch.randn(HEADS, d, generator=generator)
    given = {"x": x, "weight": (weight if of_all_heads else weight[0]).to(dtype)}
    if name == "deepseek_v4_q":
        del given["weight"]
    if name == "deepseek_v4_kv":
        given["weight"] = given["weight"].float()
    if name == "qwen3_in_f32":
        given = {operand: tensor.float() for operand, tensor in given.items()}
    y, cos, sin = system(**given)
    if name == "qwen3_f32_tables":  # the model rounds them
        _, cos, sin = system(*(tensor.float() for tensor in given.values()))
    if of_all_heads:  # the first of two phases gives the sums
        given["sums"] = x.double().square().sum((2, 3))[..., None].expand(shape[:-1])
    return given | {"cos": cos.unsqueeze(2), "sin": sin.unsqueeze(2), "y": y.to(dtype)}


def main():
    require_versions()
    index, arrays, inputs = {}, {}, {}
    calls = ((name, d) for name, (lengths, *_) in SYSTEMS.items() for d in lengths)
    for (name, d), (number, dtype) in itertools.product(calls, enumerate(TYPES.values())):
        case, words = f"{name}.{d}.{number}", f"op=forward {SYSTEMS[name][1]}"
        for operand, tensor in tensors_of(name, d, number, dtype).items():
            array, key = to_array(tensor.contiguous()), f"{case}.{operand}"
            if operand != "y":  # cases with the same values share them
                same_values = operand, array.dtype, array.shape, array.tobytes()
                key = inputs.setdefault(same_values, f"{operand}.{case}")
            arrays[key] = array
            words += f" {operand}={key}"
        index[case] = words
    check_vectors.write(FOLDER / "rotary.safetensors", arrays, index)


if __name__ == "__main__":
    with torch.no_grad():
        main()
