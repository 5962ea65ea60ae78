// SPDX-License-Identifier: Apache-2.0
// Options, contexts and operands are aggregates in C++20, without a warning about missing fields.
#include <rmsnorm/rmsnorm.hpp>

void DesignatedTest(float* x, int rows, int d) {
  rmsnorm::forward({.x = {x, rows, d}, .y = {x, rows, d}}, {.eps = 1e-6f}, {.threads = 1});
  rmsnorm::backward({.x = {x, rows, d}, .dy = {x, rows, d}, .dx = {x, rows, d}, .add_to_dx = true},
                    rmsnorm::Options{.weight_offset = 1}, rmsnorm::Context{.target = "AVX2"});
  const rmsnorm::RmsNorm norm(d, rmsnorm::Options{.eps = 1e-6f}, rmsnorm::Dtype::bf16);
  rmsnorm::forward_all({{.module = &norm, .operands = {.x = {x, rows, d}, .y = {x, rows, d}}}});
}
