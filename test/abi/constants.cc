// SPDX-License-Identifier: Apache-2.0
// The constants, which programs hold as numbers: the record of types is without them. A value never
// changes; a new constant gets its line.
#include <rmsnorm/rmsnorm.h>

static_assert(RMSNORM_OK == 0);
static_assert(RMSNORM_ERROR_NULL == 1);
static_assert(RMSNORM_ERROR_STRUCT_SIZE == 2);
static_assert(RMSNORM_ERROR_DTYPE == 3);
static_assert(RMSNORM_ERROR_SHAPE == 4);
static_assert(RMSNORM_ERROR_STRIDE == 5);
static_assert(RMSNORM_ERROR_SIZE_OVERFLOW == 6);
static_assert(RMSNORM_ERROR_ALIGNMENT == 7);
static_assert(RMSNORM_ERROR_OVERLAP == 8);
static_assert(RMSNORM_ERROR_EPS == 9);
static_assert(RMSNORM_ERROR_EPS_PLACEMENT == 10);
static_assert(RMSNORM_ERROR_ROUNDING == 11);
static_assert(RMSNORM_ERROR_WEIGHT_OFFSET == 12);
static_assert(RMSNORM_ERROR_DIVISOR == 13);
static_assert(RMSNORM_ERROR_THREADS == 14);
static_assert(RMSNORM_ERROR_TARGET == 15);
static_assert(RMSNORM_ERROR_MEMORY == 16);
static_assert(RMSNORM_ERROR_FLAGS == 17);
static_assert(RMSNORM_ERROR_DEVICE == 18);
static_assert(RMSNORM_ERROR_READ_ONLY == 19);
static_assert(RMSNORM_ERROR_OPERAND == 20);
static_assert(RMSNORM_F32 == 1);
static_assert(RMSNORM_F16 == 2);
static_assert(RMSNORM_BF16 == 3);
static_assert(RMSNORM_F64 == 4);
static_assert(RMSNORM_EPS_INSIDE == 0);
static_assert(RMSNORM_EPS_OUTSIDE == 1);
static_assert(RMSNORM_EPS_FLOOR == 2);
static_assert(RMSNORM_SCALE_THEN_CAST == 0);
static_assert(RMSNORM_CAST_THEN_SCALE == 1);
static_assert(RMSNORM_INVERSE_ROUNDED == 2);
static_assert(RMSNORM_CAST_THEN_NORM == 0);
static_assert(RMSNORM_NORM_THEN_CAST == 1);
static_assert(RMSNORM_ADD_TO_DX == 1);
static_assert(RMSNORM_ADD_TO_DW == 2);
static_assert(RMSNORM_ADD_TO_DB == 4);
static_assert(RMSNORM_MAX_DIMS == 8);
