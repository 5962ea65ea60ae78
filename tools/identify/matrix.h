// SPDX-License-Identifier: Apache-2.0
// Tensors of another implementation as dense rows, and how far two of them are apart.
#ifndef RMSNORM_TOOLS_IDENTIFY_MATRIX_H_
#define RMSNORM_TOOLS_IDENTIFY_MATRIX_H_

#include <rmsnorm/rmsnorm.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace rmsnorm::identify {

// Rows of f32, f16 or bf16, one after the other.
struct Matrix {
  rmsnorm_dtype dtype = RMSNORM_F32;
  size_t rows = 0;
  size_t d = 0;
  std::vector<char> bytes;

  size_t count() const { return rows * d; }
};

Matrix EmptyMatrix(rmsnorm_dtype dtype, size_t rows, size_t d);

// The rows of a tensor that belong to the rows of x. Each leading dimension of the tensor, counted
// from the right, is x's or 1. A tensor with one row for all rows of x gives a matrix of one row.
Matrix ReadRows(const rmsnorm_view& tensor, const rmsnorm_view& x);

// These rows of a matrix; all of it if it has one row.
Matrix TakeRows(const Matrix& matrix, const std::vector<size_t>& rows);

// A matrix of equal rows.
Matrix Repeated(const Matrix& row, size_t rows);

// The elements as f32, which holds each of them exactly, and a matrix of numbers that are rounded
// to a type.
std::vector<float> ValuesOf(const Matrix& matrix);
Matrix Rounded(const std::vector<float>& values, rmsnorm_dtype dtype, size_t rows, size_t d);

// The number rounded to a type.
float RoundedTo(rmsnorm_dtype dtype, float value);

// Whether a type holds each element exactly.
bool Holds(rmsnorm_dtype dtype, const Matrix& matrix);

// How far the elements of two matrices of one type are apart, in units in the last place. Zeros of
// both signs are equal, and so are two NaNs.
struct Distance {
  size_t elements = 0;
  size_t equal = 0;
  uint32_t worst = 0;  // kFar also where one of two elements is a NaN
  uint64_t bits = 0;   // of all distances as binary numbers

  static constexpr uint32_t kFar = UINT32_MAX;
  double Equal() const { return static_cast<double>(equal) / static_cast<double>(elements); }
  // Few wrong elements do not hide the others, as they would in a mean of the distances.
  double MeanBits() const { return static_cast<double>(bits) / static_cast<double>(elements); }
};
// Stops early once the bits are more than `most`.
Distance DistanceOf(const Matrix& a, const Matrix& b, uint64_t most = UINT64_MAX);

}  // namespace rmsnorm::identify

#endif  // RMSNORM_TOOLS_IDENTIFY_MATRIX_H_
