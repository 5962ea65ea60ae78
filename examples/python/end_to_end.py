# SPDX-License-Identifier: Apache-2.0
"""What the norms of this package give a whole model of transformers, with random weights.

    python end_to_end.py --model llama --size large --dtype bfloat16
    python end_to_end.py --model gemma3 --size tiny --dtype float32 --compile

For 16 tokens of decoding, for a prefill of 512 tokens, and for a training step (the forward and the
backward pass) on 512 tokens, it prints the share of the norms as PyTorch's profiler sees it, the
median time before and after rmsnorm.torch.use(), and the ratio of the two. Both models share
their weights, and take turns. It also prints whether greedy decoding chooses the same tokens.
"""

import argparse
import copy
import random
import statistics
import time

import torch
import transformers

import rmsnorm.torch

TOKENS = 512
STEPS = 16
SIZES = {
    "tiny": {
        "hidden_size": 256,
        "intermediate_size": 1024,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "num_hidden_layers": 4,
        "vocab_size": 1000,
    },
    # Layers of the size of Llama 3.2 1B, and a quarter of their number.
    "large": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "num_hidden_layers": 4,
        "vocab_size": 32000,
    },
}
MODELS = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM, {}),
    "gemma3": (transformers.Gemma3TextConfig, transformers.Gemma3ForCausalLM, {}),
    "qwen3_next": (
        transformers.Qwen3NextConfig,
        transformers.Qwen3NextForCausalLM,
        {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512,
            "linear_num_key_heads": 4,
            "linear_num_value_heads": 8,
            "linear_key_head_dim": 64,
            "linear_value_head_dim": 64,
        },
    ),
}


def make_models(name, size, dtype):
    """Returns a model, and another one with the same weights and the norms of this package."""
    config, model_class, more = MODELS[name]
    torch.manual_seed(1)
    model = model_class(config(**SIZES[size], **more)).to(dtype).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "norm" in parameter_name:  # weights of a norm as training leaves them: not all equal
                parameter.add_(0.1 * torch.randn_like(parameter))
    shared = {id(parameter): parameter for parameter in model.parameters()}
    after = copy.deepcopy(model, shared)
    print(rmsnorm.torch.use(after))
    return model, after


def tasks_of(model):
    """Returns the calls that are timed, by name."""
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(model.config.vocab_size, (1, TOKENS), generator=generator)

    def prefill():
        with torch.no_grad():
            model(tokens, use_cache=False)

    def train():
        model.zero_grad()
        model(tokens, labels=tokens, use_cache=False).loss.backward()

    with torch.no_grad():
        cache = model(tokens[:, :64], use_cache=True).past_key_values

    def decode():
        past = copy.deepcopy(cache)
        with torch.no_grad():
            for _ in range(STEPS):
                model(tokens[:, :1], past_key_values=past, use_cache=True)

    return {
        f"decoding {STEPS} tokens": decode,
        f"prefill of {TOKENS} tokens": prefill,
        f"training on {TOKENS} tokens": train,
    }


def time_in_turn(tasks, seconds):
    """Returns the median time of each call. All of them run in each round, in random order."""
    for task in tasks:
        task()
    times = [[] for _ in tasks]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < 5:
        for i in random.sample(range(len(tasks)), len(tasks)):
            begin = time.perf_counter()
            tasks[i]()
            times[i].append(time.perf_counter() - begin)
    return [statistics.median(each) for each in times]


def share_of_norms(model, task):
    """Returns the part of a call's time that passes in norms, forward passes alone."""

    def begin(module, _):
        module.range_of_norm = torch.profiler.record_function("a norm")
        module.range_of_norm.__enter__()

    def end(module, *_):
        module.range_of_norm.__exit__(None, None, None)

    hooks = []
    for module in model.modules():
        if "Norm" in type(module).__name__:
            hooks += [module.register_forward_pre_hook(begin), module.register_forward_hook(end)]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        with torch.profiler.record_function("all"):
            task()
    for hook in hooks:
        hook.remove()
    times = {event.key: event.cpu_time_total for event in profile.key_averages()}
    return times["a norm"] / times["all"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--model", choices=MODELS, default="llama")
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--compile", action="store_true", help="compile both models")
    parser.add_argument("--seconds", type=float, default=20, help="for each task (default: 20)")
    options = parser.parse_args()

    models = make_models(options.model, options.size, getattr(torch, options.dtype))
    tasks = [tasks_of(model) for model in models]
    shares = {name: share_of_norms(models[0], task) for name, task in tasks[0].items()}
    prompt = torch.arange(1, 17).reshape(1, -1)
    texts = [m.generate(prompt, max_new_tokens=64, do_sample=False)[0].tolist() for m in models]
    if options.compile:
        # Both models are the same code, whose versions PyTorch counts together.
        torch._dynamo.config.recompile_limit = 64
        for model in models:
            model.compile()
        tasks = [tasks_of(model) for model in models]

    print(f"| {options.model}, {options.size}, {options.dtype} | norms | before | after | ratio |")
    for name, share in shares.items():
        before, after = time_in_turn([each[name] for each in tasks], options.seconds)
        print(
            f"| {name} | {100 * share:.1f} % | {1e3 * before:.2f} ms | {1e3 * after:.2f} ms "
            f"| {after / before:.3f} |",
            flush=True,
        )
    same = sum(a == b for a, b in zip(*texts, strict=True)) - 16
    print(f"greedy decoding: {same} of 64 tokens are the same")


if __name__ == "__main__":
    main()
