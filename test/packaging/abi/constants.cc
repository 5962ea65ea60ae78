// SPDX-License-Identifier: Apache-2.0
// The constants, which programs contain as numbers: the record of types omits them. A value never
// changes; a new constant gets a line here.
#include <rmsnorm/rmsnorm.h>

static_assert(RMSNORM_OK == 0);
static_assert(RMSNORM_ERROR_NULL == 1);
static_assert(RMSNORM_ERROR_STRUCT_SIZE == 2);
static_assert(RMSNORM_ERROR_DTYPE == 3);
static_assert(RMSNORM_ERROR_SHAPE == 4);
static_assert(RMSNORM_ERROR_LAYOUT == 5);
static_assert(RMSNORM_ERROR_OVERLAP == 6);
static_assert(RMSNORM_ERROR_OPTION == 7);
static_assert(RMSNORM_ERROR_OPERAND == 8);
static_assert(RMSNORM_ERROR_TARGET == 9);
static_assert(RMSNORM_ERROR_MEMORY == 10);
static_assert(RMSNORM_ERROR_DEVICE == 11);
static_assert(RMSNORM_F32 == 1);
static_assert(RMSNORM_F16 == 2);
static_assert(RMSNORM_BF16 == 3);
static_assert(RMSNORM_F64 == 4);
static_assert(RMSNORM_I8 == 5);
static_assert(RMSNORM_EPS_INSIDE == 0);
static_assert(RMSNORM_EPS_OUTSIDE == 1);
static_assert(RMSNORM_EPS_FLOOR == 2);
static_assert(RMSNORM_ROUND_AFTER_WEIGHT == 0);
static_assert(RMSNORM_ROUND_BEFORE_WEIGHT == 1);
static_assert(RMSNORM_ROUND_INVERSE == 2);
static_assert(RMSNORM_RESIDUAL_ROUNDED == 0);
static_assert(RMSNORM_RESIDUAL_UNROUNDED == 1);
static_assert(RMSNORM_ACTIVATION_SILU == 0);
static_assert(RMSNORM_ACTIVATION_SIGMOID == 1);
static_assert(RMSNORM_GATE_AFTER == 0);
static_assert(RMSNORM_GATE_BEFORE == 1);
static_assert(RMSNORM_GATE_UNROUNDED == 0);
static_assert(RMSNORM_GATE_ROUNDED == 1);
static_assert(RMSNORM_STORES_CACHED == 0);
static_assert(RMSNORM_STORES_STREAMED == 1);
static_assert(RMSNORM_ADD_TO_DX == 1);
static_assert(RMSNORM_ADD_TO_DW == 2);
static_assert(RMSNORM_ADD_TO_DB == 4);
static_assert(RMSNORM_MAX_DIMS == 8);
static_assert(RMSNORM_VIEW_ABSENT == -1000);
static_assert(RMSNORM_VIEW_WRONG_STRIDES == -1001);
static_assert(RMSNORM_VIEW_NEGATIVE_SIZE == -1002);
static_assert(RMSNORM_VIEW_WRONG_NDIM == -1003);
