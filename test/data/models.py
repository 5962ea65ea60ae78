#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes models.safetensors: steps on the residual stream, by the layers of transformers and
diffusers themselves. Needs the packages of VERSIONS; needs no network and no GPU.

A layer computes with stand-ins for its attention and its projections, so its input is the stream,
and what the stand-in returns is x. Its norms, gates and roundings are its own.

In f16 and bf16 the rounding of y hides in which order a layer
adds squares. In f32 x, r and z have so few bits that every sum of squares is exact; where the
addend is not, after a post-norm, the case has no y."""

import importlib
import importlib.metadata
import inspect
import pathlib
import sys

import torch

FOLDER = pathlib.Path(__file__).resolve().parent
sys.path.append(str(FOLDER.parents[1] / "tools" / "vectors"))
import check_vectors  # pylint: disable=wrong-import-position

VERSIONS = {"torch": "2.15.0", "transformers": "5.24.0", "diffusers": "0.42.1"}
LAYER_SCALAR = 0.69921875  # it has the 8 bits of bf16


def of_transformers(path):
    """Returns a class by the name of its model and its own, such as "llama.LlamaRMSNorm"."""
    model, name = path.split(".")
    kind = "configuration" if name.endswith("Config") else "modeling"
    return getattr(importlib.import_module(f"transformers.models.{model}.{kind}_{model}"), name)


def of_diffusers(path):
    """Returns a block by its file and its class."""
    file, name = path.split(".")
    return getattr(importlib.import_module(f"diffusers.models.transformers.{file}"), name)


def with_weight(module, weight):
    module.weight = torch.nn.Parameter(weight, requires_grad=False)
    return module


def same(results):
    """Returns the common result of several modules, which share a row of the table."""
    results = list(results)
    for other in results[1:]:
        if other.dtype != results[0].dtype or not torch.equal(other, results[0]):
            raise SystemExit("modules of one row of the table differ")
    return results[0]


class Gives(torch.nn.Module):
    """Stands in for a part of a layer."""

    def __init__(self, result):
        super().__init__()
        self.result = result

    def forward(self, *_, **__):
        return self.result


def seen_by(norm, weight, run):
    """Returns the result of a layer's norm and its input, the stream."""
    seen = []
    if weight is not None:
        with_weight(norm, weight)
    norm.register_forward_hook(lambda _, inputs, y: seen.append((y, inputs[0])))
    run()
    return seen[0]


# Each step takes x, the residual and the gate as [batch, tokens, d] and [batch, 1, d], and returns
# y and the stream.


def gemma4_layers(x, residual, post_norm_weight, weight):
    """The end of a layer, and the first norm of the next one. In layers with an input of their own
    x comes from its projection."""
    sizes = {"num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 8}
    nothing = torch.zeros_like(x)
    streams = []
    for model, name, own_input in (
        ("gemma4", "Gemma4TextDecoderLayer", 0),
        ("gemma4", "Gemma4TextDecoderLayer", 8),
        ("gemma4_unified", "Gemma4UnifiedTextDecoderLayer", 0),
    ):
        config = of_transformers(f"{model}.{name.replace('DecoderLayer', 'Config')}")(
            hidden_size=x.shape[-1], hidden_size_per_layer_input=own_input, **sizes
        )
        layer = of_transformers(f"{model}.{name}")(config, layer_idx=0).to(x.dtype)
        layer.self_attn, layer.mlp = Gives((nothing, None)), Gives(nothing if own_input else x)
        post_norm = layer.post_feedforward_layernorm
        if own_input:
            post_norm = layer.post_per_layer_input_norm
            layer.per_layer_input_gate, layer.per_layer_projection = Gives(nothing), Gives(x)
        with_weight(post_norm, post_norm_weight)
        layer.layer_scalar.fill_(LAYER_SCALAR)
        streams.append(layer(residual, nothing) if own_input else layer(residual))
    stream = same(streams)
    return with_weight(layer.input_layernorm, weight)(stream), stream


def lumina2(x, residual, gate, post_norm_weight, weight):
    """From attention to the feed-forward part. The gate is before its tanh."""
    batch, d = x.shape[0], x.shape[-1]
    nothing = torch.zeros_like(gate)
    modulation = torch.cat((nothing, gate, nothing, nothing), dim=-1)
    found = []
    for path, arguments, given in (
        ("transformer_lumina2.Lumina2TransformerBlock", (d, 1, 1, 8, None, 1e-5), 4),
        ("transformer_z_image.ZImageTransformerBlock", (0, d, 1, 1, 1e-5, True), 4),
        ("transformer_bria_fibo2.BriaFibo2TransformerBlock", (d, 1, 1e-5), 4),
        ("transformer_ideogram4.Ideogram4TransformerBlock", (d, 8, 1, 1e-5, 8), 4),
    ):
        block = of_diffusers(path)(*arguments).to(x.dtype)
        block.feed_forward = torch.nn.Identity()
        if path.startswith("transformer_lumina2"):
            parts = (each.squeeze(1) for each in (gate, nothing, nothing))
            block.norm1, block.attn = Gives((residual, *parts)), Gives(x)
            post_norm = block.norm2
        else:
            block.attention, post_norm = Gives(x), block.attention_norm2
            is_ideogram = "ideogram" in path
            name = "adaln_modulation" if is_ideogram else "adaLN_modulation"
            of_batch = modulation if is_ideogram else modulation.view(batch, given * d)
            setattr(block, name, Gives(of_batch))
        with_weight(post_norm, post_norm_weight)
        found.append(seen_by(block.ffn_norm1, weight, lambda: block(residual, None, None, nothing)))
    return tuple(map(same, zip(*found)))


def ltx(x, residual, gate):
    """The end of a block, and the first norm of the next one."""
    d = x.shape[-1]
    make = of_diffusers("transformer_ltx.LTXVideoTransformerBlock")
    block, next_block = (make(d, 1, d, d).to(x.dtype) for _ in range(2))
    torch.nn.init.zeros_(block.scale_shift_table)
    block.attn1, block.attn2, block.ff = Gives(x * 0), Gives(x * 0), Gives(x)
    modulation = torch.stack([*[torch.zeros_like(gate)] * 5, gate], dim=2)
    stream = block(residual, None, modulation.flatten(2))
    return next_block.norm1(stream), stream


def ernie_and_ace_step(x, residual, gate, weight):
    d, nothing = x.shape[-1], torch.zeros_like(gate)
    ernie = of_diffusers("transformer_ernie_image.ErnieImageSharedAdaLNBlock")(d, 1, 8).to(x.dtype)
    ernie.self_attention, ernie.mlp = Gives(x), torch.nn.Identity()
    tokens_first = [each.transpose(0, 1) for each in (nothing, nothing, gate, *[nothing] * 3)]
    found = seen_by(
        ernie.adaLN_mlp_ln, weight, lambda: ernie(residual.transpose(0, 1), None, tokens_first)
    )
    ace = of_diffusers("ace_step_transformer.AceStepTransformerBlock")(
        d, 1, 1, d, 8, use_cross_attention=False
    ).to(x.dtype)
    ace.self_attn, ace.mlp = Gives(x), torch.nn.Identity()
    torch.nn.init.zeros_(ace.scale_shift_table)
    modulation = torch.cat((nothing, nothing, gate, *[nothing] * 3), dim=1)
    other = seen_by(ace.mlp_norm, weight, lambda: ace(residual, None, modulation))
    return tuple(map(same, zip((each.transpose(0, 1) for each in found), other)))


def minimax_h3(x, residual, gate, weight):
    """Packs the batch into one sequence, with a gate for each token."""
    d = x.shape[-1]
    block = of_diffusers("transformer_minimax_h3.MiniMaxH3TransformerBlock")(
        d, 1, d, 8, 8, 1e-5, 1e-5
    ).to(x.dtype)
    block.attn, block.ff = Gives(x.view(1, -1, d)), torch.nn.Identity()
    gates = gate.flatten(0, 1)
    block.adaln_proj = Gives([gates if i == 2 else gates * 0 for i in range(6)])
    tokens = torch.arange(len(gates)).repeat_interleave(x.shape[1])
    packed = residual.view(1, -1, d)
    found = seen_by(block.norm2, weight, lambda: block(packed, None, tokens, None))
    return tuple(each.view(x.shape) for each in found)


def krea2(x, residual, gate, weight):
    d, nothing = x.shape[-1], torch.zeros_like(gate)
    block = of_diffusers("transformer_krea2.Krea2TransformerBlock")(d, 8, 1, 1, 1e-5).to(x.dtype)
    block.norm1, block.attn, block.ff = torch.nn.Identity(), Gives(x), torch.nn.Identity()
    modulation = torch.cat((nothing, nothing, gate, *[nothing] * 3), dim=-1)
    return seen_by(block.norm2, weight, lambda: block(residual, modulation, None))


def mochi(x, residual, gate, scale):
    """The weight of the post-norm is the tanh of the gate, and that of the norm 1 + scale."""
    d, nothing = x.shape[-1], torch.zeros_like(gate).squeeze(1)
    block = of_diffusers("transformer_mochi.MochiTransformerBlock")(
        d, 1, d, d, context_pre_only=True, activation_fn="gelu"
    ).to(x.dtype)
    block.norm1 = Gives((x, gate.squeeze(1), scale.squeeze(1), nothing))
    block.norm1_context, block.attn1, block.ff = Gives(x), Gives((x, x)), torch.nn.Identity()
    return seen_by(block.norm3, None, lambda: block(residual, x, None, None))


#: The steps by the names of their rows in doc/migration.md, which has no row for the last one.
STEPS = {
    "gemma4_layer": gemma4_layers,
    "lumina2": lumina2,
    "ltx": ltx,
    "ernie_image": ernie_and_ace_step,
    "minimax_h3": minimax_h3,
    "krea2": krea2,
    "mochi": mochi,
}
TANH = ("lumina2", "mochi")  # they take the tanh of their gates
GATED = {"activation": "none", "gate_placement": "before", "gate_rounding": "rounded"}
OPTIONS = {
    "gemma4_layer": {"eps": 1e-6, "residual_factor": LAYER_SCALAR},
    "lumina2": {"eps": 1e-5, "rounding": "before_weight", **GATED},
    "ltx": {"eps": 1e-6, **GATED},
    "ernie_image": {"eps": 1e-6, "rounding": "before_weight", **GATED},
    "minimax_h3": {"eps": 1e-5, **GATED},
    "krea2": {"eps": 1e-5, "weight_offset": 1, **GATED},
    "mochi": {"eps": 1e-6},
}
TYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
D = 64


def arguments_of(name, dtype, seed=0):
    """Returns random arguments of a step: two samples of three tokens."""
    generator = torch.Generator().manual_seed(seed)

    def numbers(tokens, largest):
        shape = (2, tokens, D)
        if dtype != torch.float32:
            return torch.randn(shape, generator=generator).to(dtype)
        return torch.randint(-16, 17, shape, generator=generator) * (largest / 16)

    drawn = {"x": numbers(3, 2.0), "residual": numbers(3, 2.0)}
    drawn |= {"gate": numbers(1, 1.0), "scale": numbers(1, 1.0)}
    weights = (1 + 0.2 * torch.randn(2, D, generator=generator)).to(dtype)
    drawn |= dict(zip(("weight", "post_norm_weight"), weights))
    if name == "krea2":
        drawn["weight"] = drawn["weight"].float()
    return {operand: drawn[operand] for operand in inspect.signature(STEPS[name]).parameters}


def operands_of(name, given):
    """Returns the operands of the library's call for the arguments of a step."""
    operands = dict(given)
    if name in TANH:
        operands["gate"] = given["gate"].tanh()
    if name == "mochi":
        operands["post_norm_weight"] = operands.pop("gate")
        operands["weight"] = 1 + operands.pop("scale").float()
    return operands


def to_array(tensor):
    """bf16 becomes its bits."""
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def require_versions():
    for package, version in VERSIONS.items():
        if importlib.metadata.version(package) != version:
            raise SystemExit(f"{package} is {importlib.metadata.version(package)}, not {version}")


def main():
    require_versions()
    index, arrays, keys = {}, {}, {}
    for number, dtype in enumerate(TYPES.values()):
        for name, step in STEPS.items():
            given = arguments_of(name, dtype, number)
            operands, results = operands_of(name, given), dict(
                zip(("y", "residual_out"), step(**given))
            )
            if "gate" in operands:
                operands["gate"] = operands["gate"].expand(given["x"].shape)
            if dtype == torch.float32 and "post_norm_weight" in operands:
                del operands["weight"], results["y"]
            case = f"{name}.{D}.{number}"
            words = {"op": "forward", **OPTIONS[name]}
            for operand, tensor in (operands | results).items():
                array = to_array(tensor.contiguous())
                # Cases share inputs.
                key = keys.setdefault((operand, array.tobytes()), f"{operand}.{len(keys)}")
                words[operand] = f"{case}.{operand}" if operand in results else key
                arrays[words[operand]] = array
            index[case] = " ".join(f"{key}={word}" for key, word in words.items())
    check_vectors.write(FOLDER / "models.safetensors", arrays, index)


if __name__ == "__main__":
    with torch.no_grad():
        main()
