// SPDX-License-Identifier: Apache-2.0
// The norms of a layer in an inference engine: bf16 activations, Hugging Face's Llama rounding, and
// the heads of q and of k normalised in place inside a fused QKV buffer, both in one call.
#include <cstdio>
#include <rmsnorm/rmsnorm.hpp>
#include <vector>

int main() {
  using rmsnorm::bf16;
  const std::size_t tokens = 3, d = 64, heads = 4, kv_heads = 2, head = 16;

  rmsnorm::Options options;
  options.eps = 1e-6f;
  options.rounding = rmsnorm::Rounding::before_weight;
  const rmsnorm::RmsNorm input_norm(d, options, rmsnorm::Dtype::bf16);
  std::vector<bf16> hidden(tokens * d, bf16{0x4040});  // 3.0
  std::vector<bf16> normed(tokens * d);
  input_norm.norm(hidden.data(), normed.data(), tokens);

  const rmsnorm::RmsNorm q_norm(head, options, rmsnorm::Dtype::bf16);
  const rmsnorm::RmsNorm k_norm(head, options, rmsnorm::Dtype::bf16);
  const std::size_t row = (heads + 2 * kv_heads) * head;  // q, k and v of a token, side by side
  std::vector<bf16> qkv(tokens * row, bf16{0x4000});      // 2.0
  const std::ptrdiff_t next_token = row, next_head = head;
  rmsnorm::ForwardOperands q, k;
  q.y = {qkv.data(), {tokens, heads, head}, {next_token, next_head, 1}};
  q.x = q.y;
  k.y = {qkv.data() + heads * head, {tokens, kv_heads, head}, {next_token, next_head, 1}};
  k.x = k.y;
  rmsnorm::forward_all({{&q_norm, q}, {&k_norm, k}});

  std::printf("%s: %04x\n", input_norm.description().c_str(), normed[0].bits);  // 3f80 is 1.0
  std::printf("%s: q %04x, k %04x, v %04x\n", q_norm.description().c_str(), qkv[0].bits,
              qkv[heads * head].bits, qkv[(heads + kv_heads) * head].bits);
}
