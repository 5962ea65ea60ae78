# SPDX-License-Identifier: Apache-2.0
"""Builds a plug-in whose kernels are those that torch.compile makes: `rmsnorm bench
--benchmark_list_tests ... | inductor.py OUTPUT`. Each operation is a function here, in f32 between
its tensors. Inductor makes kernels of it for each cell of the list, and calls them once: what it
passes to them says which tensors a call of the plug-in passes."""

import inspect
import os
import re
import sys
import warnings

import torch
import torch._inductor.exc
from torch._inductor import async_compile, config, cpp_builder, cpu_vec_isa
from torch._inductor.loop_body import LoopBody

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")

TYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
CODES = {torch.float32: 1, torch.float16: 2, torch.bfloat16: 3, torch.int8: 5}
EPS = 1e-5


def normalise(x):
    x = x.float()
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + EPS)


def norm(x, weight, y):
    y.copy_(normalise(x) * weight)


def add_norm(x, weight, residual, residual_out, y):
    h = residual + x
    y.copy_(normalise(h) * weight)
    residual_out.copy_(h)


def post_norm(x, weight, post_norm_weight, residual, residual_out, y):
    add_norm((normalise(x) * post_norm_weight).to(x.dtype), weight, residual, residual_out, y)


def backward(x, weight, dy, rstd, dx, dw):
    r = rstd.unsqueeze(-1)
    n, dy = x.float() * r, dy.float()
    g = dy * weight
    dx.copy_((g - n * (g * n).mean(-1, keepdim=True)) * r)
    dw.copy_((dy * n).sum(0))


def gate_after(x, weight, gate, y):
    gate = gate.float()
    y.copy_(normalise(x) * weight * (gate * torch.sigmoid(gate)))


def int8_alone(x, weight, q, scale):
    y = (normalise(x) * weight).to(x.dtype).float()
    rows = y.reshape(*scale.shape, -1)
    largest = rows.abs().amax(-1)
    q.copy_((rows * (127 / largest).unsqueeze(-1)).round().clamp(-128, 127).reshape(x.shape))
    scale.copy_(largest / 127)
    return y


def int8(x, weight, q, scale, y):
    y.copy_(int8_alone(x, weight, q, scale))


def rotary(x, weight, cos, sin, y):
    a, b = (normalise(x) * weight).chunk(2, -1)
    y.copy_(torch.cat((a * cos - b * sin, b * cos + a * sin), -1))


OPERATIONS = (norm, add_norm, post_norm, backward, gate_after, int8, int8_alone, rotary)
FUNCTIONS = {function.__name__: function for function in OPERATIONS}
OF_OTHER_TYPES = {"rstd": torch.float32, "scale": torch.float32, "dw": torch.float32, "q": torch.int8}


def calls_of(operation, dtype, rows, d):
    """Returns the calls of a cell: a function, its operands by name, and its group."""
    of_heads = operation in ("q_and_k", "rotary")
    group = int(operation[5:]) if re.fullmatch(r"int8_\d+", operation) else 0
    name = {"q_and_k": "norm"}.get(operation, "int8_alone" if group else operation)
    if name not in FUNCTIONS:
        sys.exit(f"inductor.py: no operation {operation}")
    function = FUNCTIONS[name]
    names = list(inspect.signature(function).parameters)
    d = d // 48 if of_heads else d
    shapes = dict.fromkeys(("weight", "post_norm_weight", "dw"), (d,))
    shapes |= {"rstd": (rows,), "scale": (rows, d // group) if group else (rows,)}
    shapes |= dict.fromkeys(("cos", "sin"), (rows, 1, d // 2))
    calls = []
    for heads in (32, 8) if of_heads else (None,):
        operands = {}
        for name in names:
            shape = shapes.get(name, (rows, 48, d) if of_heads else (rows, d))
            tensor = torch.rand(shape).add(0.5).to(OF_OTHER_TYPES.get(name, dtype))
            operands[name] = tensor if name in shapes or not of_heads else tensor[:, :heads]
        if "residual_out" in operands:
            operands["residual_out"] = operands["residual"]
        calls.append((function, operands, group))
    return calls


def key_of(calls, names, threads):
    """Returns what tells cells apart, as the plug-in does."""
    key = f"{threads}"
    for _, operands, group in calls:
        key += f";{group}"
        for i, name in enumerate(names):
            if name in operands:
                tensor = operands[name]
                key += f" {i}:{CODES[tensor.dtype]}"
                for size, stride in zip(tensor.shape, tensor.stride()):
                    key += f",{size}/{stride if size > 1 else 0}"
    return key


sources, launches = [], []  # of kernels, and (kernel, its tensors) of the calls since the last cell


def keep(_self, types, source):
    number = len(sources)
    source = re.sub(r"#include.*\n", "", source).replace('extern "C"', "static")
    sources.append((types, f"#undef kernel\n#define kernel kernel_{number}\n{source}"))
    return lambda *tensors: launches.append((number, tensors))


def read_expr(body, name, original=LoopBody.get_read_expr):
    """Returns None, which no index equals, where a loop does not read a buffer by this name.
    PyTorch 2.15 itself ends with a KeyError for a norm that replaces its residual and whose input
    is a norm (pytorch/pytorch#196570)."""
    try:
        return original(body, name)
    except KeyError:
        return None


def cell_of(calls):
    """Returns the statements that call a cell's kernels, and the sizes of their buffers."""
    torch.compiler.reset()
    launches.clear()
    operands = [tensors for _, tensors, _ in calls]

    def run(operands):
        for (function, _, _), tensors in zip(calls, operands):
            function(*tensors.values())

    with torch.no_grad():
        torch.compile(run, dynamic=False, fullgraph=True)(operands)
    places, sizes = [], []  # (memory, its beginning for a kernel, its name), and the sizes of buffers
    for call, tensors in enumerate(operands):
        for name, tensor in tensors.items():
            places.append((tensor.untyped_storage(), tensor.data_ptr(), f"O({call}, {name})"))

    def place_of(tensor):
        memory, at = tensor.untyped_storage(), tensor.data_ptr()
        for other, begin, name in places:
            if other.data_ptr() <= at < other.data_ptr() + other.nbytes():
                return f"(char*){name} + {at - begin}"
        places.append((memory, memory.data_ptr(), f"s.buffers[{len(sizes)}]"))
        sizes.append(memory.nbytes())
        return place_of(tensor)

    text = ""
    for number, tensors in launches:
        passed = [f"({t})({place_of(tensor)})" for t, tensor in zip(sources[number][0], tensors)]
        text += f"kernel_{number}({', '.join(passed)}); "
    return text, sizes


FRAME = r"""
#include "peer.h"
#include <cstdlib>
#include <string>
#include <vector>
struct State { void (*run)(State&); std::vector<rmsnorm_operands> calls; std::vector<void*> buffers; };
#define O(call, name) s.calls[call].name->data
struct Entry { const char* key; void (*run)(State&); std::vector<size_t> sizes; };
static const Entry entries[] = {
@entries@};
static std::string Key(const rmsnorm_peer_case& what) {
  std::string key = std::to_string(what.threads);
  for (size_t i = 0; i < what.count; ++i) {
    const rmsnorm_options& given = *what.calls[i].options;
    rmsnorm_options known = {};
    known.size = sizeof known;
    known.eps = @eps@f;
    known.group = given.group;
    if (memcmp(&known, &given, sizeof known) != 0) return "";
    key += ";" + std::to_string(given.group);
    const auto views = reinterpret_cast<const rmsnorm_view* const*>(&what.calls[i].operands->x);
    for (int o = 0; o < @count@; ++o) {
      if (views[o] == nullptr) continue;
      const rmsnorm_view& view = *views[o];
      key += " " + std::to_string(o) + ":" + std::to_string(view.dtype);
      for (int k = 0; k < view.ndim; ++k) {
        key += "," + std::to_string(view.shape[k]) + "/" +
               std::to_string(view.shape[k] > 1 ? view.stride[k] : 0);
      }
    }
  }
  return key;
}
static void* Prepare(const rmsnorm_peer_case* what, const char** why) {
  static std::string key;
  key = Key(*what);
  for (const Entry& entry : entries) {
    if (key != entry.key) continue;
    State* const state = new State{entry.run, {}, {}};
    for (size_t i = 0; i < what->count; ++i) state->calls.push_back(*what->calls[i].operands);
    for (const size_t size : entry.sizes) state->buffers.push_back(calloc(size, 1));
    return state;
  }
  *why = "no kernel";
  return nullptr;
}
static void Run(void* state) { static_cast<State*>(state)->run(*static_cast<State*>(state)); }
static void Release(void* state) {
  for (void* const buffer : static_cast<State*>(state)->buffers) free(buffer);
  delete static_cast<State*>(state);
}
const rmsnorm_peer* rmsnorm_peer_get() {
  static const rmsnorm_peer peer = {RMSNORM_PEER_VERSION, "inductor", Prepare, Run, Release};
  return &peer;
}
"""


def build(source, output):
    """Compiles with the options that torch.compile has for its kernels."""
    folder, name = os.path.split(os.path.abspath(output))
    libraries = os.path.join(os.path.dirname(torch.__file__), "lib")
    options = cpp_builder.CppTorchOptions(
        vec_isa=cpu_vec_isa.pick_vec_isa(),
        include_pytorch=True,
        warning_all=False,
        extra_flags=[
            f"-I{ROOT}/include",
            f"-I{ROOT}/bench/peers",
            f"-Wl,--disable-new-dtags,-rpath,{libraries},-z,nodelete",
        ],
    )
    cpp_builder.CppBuilder(name.removesuffix(".so"), [source], options, folder).build()


def main(output):
    with open(f"{ROOT}/include/rmsnorm/rmsnorm.h", encoding="utf-8") as file:
        struct = re.search(r"^typedef struct rmsnorm_operands \{.*?\}", file.read(), re.M | re.S)
    names = re.findall(r"^  const rmsnorm_view\* (\w+);", struct[0], re.M)
    warnings.simplefilter("ignore")
    config.force_disable_caches = True
    async_compile.AsyncCompile.cpp_pybinding = keep
    LoopBody.get_read_expr = read_expr
    entries, cells = "", sys.stdin.read().split()
    for i, cell in enumerate(cells):
        operation, dtype, shape, threads = cell.split("/")[:4]
        rows, d = map(int, shape.split("x"))
        threads = int(threads.removeprefix("threads:"))
        calls = calls_of(operation, TYPES[dtype], rows, d)
        torch.set_num_threads(threads)
        try:
            text, sizes = cell_of(calls)
        except torch._inductor.exc.InductorError as error:
            print(f"inductor: {cell}: {str(error).splitlines()[0]}", file=sys.stderr)
            continue
        key, sizes = key_of(calls, names, threads), ", ".join(map(str, sizes))
        entries += f'    {{"{key}", [](State& s) {{ {text}}}, {{{sizes}}}}},\n'
        if i % 20 == 0:
            print(f"inductor: {i} of {len(cells)} cells", file=sys.stderr)
    source = output.removesuffix(".so") + ".cc"
    frame = FRAME.replace("@entries@", entries).replace("@count@", str(len(names)))
    with open(source, "w", encoding="utf-8") as file:
        file.write("#include <torch/csrc/inductor/cpp_prefix.h>\n")
        file.write("\n".join(text for _, text in sources) + "\n#undef kernel\n")
        file.write(frame.replace("@eps@", str(EPS)))
    build(os.path.abspath(source), output)


if __name__ == "__main__":
    main(*sys.argv[1:])
