// SPDX-License-Identifier: Apache-2.0
// Functions that name the operands of rmsnorm_forward() as parameters.
#include <rmsnorm/rmsnorm.h>

rmsnorm_status rmsnorm_norm(const rmsnorm_view* x, const rmsnorm_view* weight,
                            const rmsnorm_view* y, const rmsnorm_options* options) noexcept {
  rmsnorm_operands operands = rmsnorm_no_operands();
  operands.x = x;
  operands.weight = weight;
  operands.y = y;
  return rmsnorm_forward(&operands, options, nullptr);
}

rmsnorm_status rmsnorm_add_norm(const rmsnorm_view* x, const rmsnorm_view* residual,
                                const rmsnorm_view* weight, const rmsnorm_view* residual_out,
                                const rmsnorm_view* y, const rmsnorm_options* options) noexcept {
  rmsnorm_operands operands = rmsnorm_no_operands();
  operands.x = x;
  operands.residual = residual;
  operands.weight = weight;
  operands.residual_out = residual_out;
  operands.y = y;
  return rmsnorm_forward(&operands, options, nullptr);
}
