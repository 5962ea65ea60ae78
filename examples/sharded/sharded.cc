// SPDX-License-Identifier: Apache-2.0
// Tensor parallel over MPI: each rank holds some columns of every row, of x, of dy and of the
// weight. A norm needs one number per row from each other rank, both forward (the sum of squares)
// and backward (the dot product c), so each direction makes one MPI_Allgather for all rows of the
// call. Every rank also computes the whole norm, and compares its columns. See doc/sharded.md.
#include <mpi.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <rmsnorm/rmsnorm.hpp>
#include <vector>

namespace {

using std::size_t;

// The columns of one rank, or of all ranks; then `columns` is d.
struct Shard {
  Shard(size_t rows_of_call, size_t own_columns, size_t d)
      : rows(rows_of_call), columns(own_columns) {
    options.divisor = static_cast<float>(d);  // the whole row's length, in both phases
    context.threads = 1;                      // each rank works on one thread
    for (std::vector<float>* tensor : {&x, &y, &dy, &dx}) tensor->resize(rows * columns);
    for (std::vector<float>* tensor : {&weight, &dw}) tensor->resize(columns);
    rstd.resize(rows);
  }

  size_t rows, columns;
  rmsnorm::Options options;
  rmsnorm::Context context;
  std::vector<float> x, weight, y, rstd, dy, dx, dw;
};

// Adds up the ranks' parts for each row, and measures the time.
struct Communication {
  // MPI_Allreduce may add in any order. Adding in rank order gives the same bits on each rank and
  // in each run.
  void AddUp(std::vector<double>* parts) {
    const double begin = MPI_Wtime();
    int ranks;
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    const size_t rows = parts->size();
    const int count = static_cast<int>(rows);
    gathered.resize(static_cast<size_t>(ranks) * rows);
    MPI_Allgather(parts->data(), count, MPI_DOUBLE, gathered.data(), count, MPI_DOUBLE,
                  MPI_COMM_WORLD);
    std::fill(parts->begin(), parts->end(), 0.0);
    for (size_t i = 0; i < gathered.size(); ++i) (*parts)[i % rows] += gathered[i];
    seconds += MPI_Wtime() - begin;
  }

  std::vector<double> gathered;  // rank by rank
  double seconds = 0;
};

// The two phases of doc/two_phases.md. All ranks get the same bits of the inverse RMS.
void Forward(Shard* shard, Communication* communication) {
  std::vector<double> sums(shard->rows);
  rmsnorm::ForwardOperands operands;
  operands.x = {shard->x.data(), shard->rows, shard->columns};
  operands.sums_out = {sums.data(), shard->rows};
  rmsnorm::forward(operands, shard->options, shard->context);

  communication->AddUp(&sums);

  operands.sums_out = {};
  operands.sums = {sums.data(), shard->rows};
  operands.weight = {shard->weight.data(), shard->columns};
  operands.y = {shard->y.data(), shard->rows, shard->columns};
  operands.rstd = {shard->rstd.data(), shard->rows};
  rmsnorm::forward(operands, shard->options, shard->context);
}

rmsnorm::BackwardOperands GradientOfWeight(Shard* shard) {
  rmsnorm::BackwardOperands operands;
  operands.dy = {shard->dy.data(), shard->rows, shard->columns};
  operands.x = {shard->x.data(), shard->rows, shard->columns};
  operands.rstd = {shard->rstd.data(), shard->rows};
  operands.dw = {shard->dw.data(), shard->columns};
  return operands;
}

// With g = dy * weight, dx = r * (g - x * r^2 * c / d), where c is the sum of g * x over the whole
// row. rmsnorm_backward() cannot return c for some columns, and cannot take the c of a row. So this
// computes dx in plain loops in binary64. dw needs only r, so the library computes it.
void Backward(Shard* shard, Communication* communication) {
  std::vector<double> dots(shard->rows);
  for (size_t row = 0; row < shard->rows; ++row) {
    const float* const x = &shard->x[row * shard->columns];
    const float* const dy = &shard->dy[row * shard->columns];
    for (size_t j = 0; j < shard->columns; ++j) {
      dots[row] += double{dy[j]} * shard->weight[j] * x[j];
    }
  }

  communication->AddUp(&dots);

  for (size_t row = 0; row < shard->rows; ++row) {
    const float* const x = &shard->x[row * shard->columns];
    const float* const dy = &shard->dy[row * shard->columns];
    float* const dx = &shard->dx[row * shard->columns];
    const double r = shard->rstd[row];
    const double q = r * r * dots[row] / shard->options.divisor;
    for (size_t j = 0; j < shard->columns; ++j) {
      dx[j] = static_cast<float>(r * (double{dy[j]} * shard->weight[j] - x[j] * q));
    }
  }
  rmsnorm::backward(GradientOfWeight(shard), shard->options, shard->context);
}

void WholeNorm(Shard* whole) {
  rmsnorm::ForwardOperands forward;
  forward.x = {whole->x.data(), whole->rows, whole->columns};
  forward.weight = {whole->weight.data(), whole->columns};
  forward.y = {whole->y.data(), whole->rows, whole->columns};
  forward.rstd = {whole->rstd.data(), whole->rows};
  rmsnorm::forward(forward, whole->options, whole->context);
  rmsnorm::BackwardOperands backward = GradientOfWeight(whole);
  backward.weight = {whole->weight.data(), whole->columns};
  backward.dx = {whole->dx.data(), whole->rows, whole->columns};
  rmsnorm::backward(backward, whole->options, whole->context);
}

// The largest differences of r, y, dx and dw, relative to their bounds.
using Differences = std::array<double, 4>;

void Take(double difference, double bound, double* largest) {
  const bool is_within = difference <= bound;  // false for a NaN
  *largest =
      is_within ? std::max(*largest, difference / bound) : std::numeric_limits<double>::infinity();
}

// u is half the distance from 1 to the next f32. doc/definition.md bounds the error of r for the
// whole row, against the exact value. A sum of parts rounds once more, which adds u. y, dx and dw
// are compared with the whole norm, whose r may be off by as much in the other direction. y rounds
// twice after r. dx contains r up to three times. c is off by less than twice the bound of
// r, relative to the sum of |g x|, but only in the whole norm, which rounds seven times more. An
// element of dw rounds once for dy x, then in up to 16 rows of a block (more from 1,024 rows on),
// then in up to 63 blocks. The last 1 % is for products of errors.
Differences Compare(const Shard& part, const Shard& whole, size_t begin) {
  const double u = 0x1p-24;
  const double d = static_cast<double>(whole.columns);
  const double rows = static_cast<double>(whole.rows);
  const double k = std::ceil(std::min(d, 4096.0) / 128), b = std::ceil(d / 4096) - 1;
  const double bound = ((k + 7 + b) / 2 + 4) * u;
  Differences largest = {};
  std::vector<double> dw_size(part.columns);
  for (size_t row = 0; row < whole.rows; ++row) {
    const float* const x = &whole.x[row * whole.columns];
    const float* const dy = &whole.dy[row * whole.columns];
    double squares = 0, c_size = 0;
    for (size_t j = 0; j < whole.columns; ++j) {
      squares += double{x[j]} * x[j];
      c_size += std::fabs(double{dy[j]} * whole.weight[j] * x[j]);
    }
    const double r = 1 / std::sqrt(squares / d + whole.options.eps);
    Take(std::fabs(part.rstd[row] - r), bound * r, &largest[0]);
    for (size_t j = 0; j < part.columns; ++j) {
      const size_t at = row * whole.columns + begin + j, own = row * part.columns + j;
      const double x_j = x[begin + j], dy_j = dy[begin + j], w_j = whole.weight[begin + j];
      const double y = whole.y[at], dx = whole.dx[at];
      const double dx_size = r * (std::fabs(dy_j * w_j) + std::fabs(x_j) * r * r * c_size / d);
      Take(std::fabs(part.y[own] - y), 1.01 * (2 * bound + 4 * u) * std::fabs(y), &largest[1]);
      Take(std::fabs(part.dx[own] - dx), 1.01 * (8 * bound + 8 * u) * dx_size, &largest[2]);
      dw_size[j] += std::fabs(dy_j * x_j * r);
    }
  }
  for (size_t j = 0; j < part.columns; ++j) {
    const double roundings = 1 + rows / 64 + 17 + 63;
    Take(std::fabs(double{part.dw[j]} - whole.dw[begin + j]),
         1.01 * 2 * (bound + roundings * u) * dw_size[j], &largest[3]);
  }
  return largest;
}

void AddToHash(const void* data, size_t bytes, std::uint64_t* hash) {  // FNV-1a
  for (size_t i = 0; i < bytes; ++i) {
    *hash = (*hash ^ static_cast<const unsigned char*>(data)[i]) * 0x100000001b3;
  }
}

// A number that shows whether two runs gave the same bits, on rank 0.
std::uint64_t HashOfResults(const Shard& part, size_t ranks) {
  std::uint64_t own = 0xcbf29ce484222325, all = own;
  for (const std::vector<float>* result : {&part.y, &part.rstd, &part.dx, &part.dw}) {
    AddToHash(result->data(), result->size() * sizeof(float), &own);
  }
  std::vector<std::uint64_t> hashes(ranks);
  MPI_Gather(&own, 1, MPI_UINT64_T, hashes.data(), 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
  AddToHash(hashes.data(), ranks * sizeof(own), &all);
  return all;
}

// Calls a step `repeats` times. Rank 0 prints the time of the step and the share of communication,
// as means over the ranks. Communication includes the wait for the slowest rank.
void Time(const char* name, void (*step)(Shard*, Communication*), size_t repeats, Shard* part) {
  int rank, ranks;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  Communication communication;
  MPI_Barrier(MPI_COMM_WORLD);
  const double begin = MPI_Wtime();
  for (size_t i = 0; i < repeats; ++i) step(part, &communication);
  const double own[2] = {MPI_Wtime() - begin, communication.seconds};
  double all[2] = {};
  MPI_Reduce(own, all, 2, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
  if (rank != 0) return;
  std::printf("%s: %.1f us, %.1f %% of it communication\n", name,
              all[0] / (ranks * static_cast<double>(repeats)) * 1e6, all[1] / all[0] * 100);
}

// Returns false if an argument is unknown or no number from 1 to 2^20.
bool Parse(int argc, char** argv, size_t* rows, size_t* d, size_t* repeats) {
  for (int i = 1; i < argc; i += 2) {
    size_t* const number = std::strcmp(argv[i], "--rows") == 0      ? rows
                           : std::strcmp(argv[i], "--d") == 0       ? d
                           : std::strcmp(argv[i], "--repeats") == 0 ? repeats
                                                                    : nullptr;
    if (number == nullptr || i + 1 == argc) return false;
    char* end;
    *number = std::strtoul(argv[i + 1], &end, 10);
    if (*end != '\0' || *number < 1 || *number > size_t{1} << 20) return false;
  }
  return true;
}

int Run(int argc, char** argv) {
  int rank, ranks;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const size_t index = static_cast<size_t>(rank), count = static_cast<size_t>(ranks);
  size_t rows = 32, d = 4096, repeats = 100;
  if (!Parse(argc, argv, &rows, &d, &repeats) || d < count) {
    if (rank == 0) {
      std::fprintf(stderr,
                   "usage: mpirun -n RANKS sharded [--rows N] [--d N] [--repeats N]\n"
                   "each rank needs a column of the d\n");
    }
    return 2;
  }

  const size_t begin = d * index / count, end = d * (index + 1) / count;
  Shard whole(rows, d, d), part(rows, end - begin, d);
  std::mt19937 random;  // the same numbers on every rank, in (-1, 1)
  for (std::vector<float>* tensor : {&whole.x, &whole.dy, &whole.weight}) {
    for (float& value : *tensor) value = (static_cast<float>(random() >> 9) + 0.5f) * 0x1p-22f - 1;
  }
  for (size_t row = 0; row < rows; ++row) {
    std::copy_n(&whole.x[row * d + begin], part.columns, &part.x[row * part.columns]);
    std::copy_n(&whole.dy[row * d + begin], part.columns, &part.dy[row * part.columns]);
  }
  std::copy_n(&whole.weight[begin], part.columns, part.weight.data());

  if (rank == 0) std::printf("%d ranks, %zu x %zu, %zu repeats\n", ranks, rows, d, repeats);
  Time("forward", Forward, repeats, &part);
  Time("backward", Backward, repeats, &part);

  WholeNorm(&whole);
  const Differences own = Compare(part, whole, begin);
  Differences all;
  MPI_Allreduce(own.data(), all.data(), 4, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  const std::uint64_t hash = HashOfResults(part, count);
  if (rank == 0) {
    std::printf("differences, as parts of their bounds: r %g, y %g, dx %g, dw %g\nbits: %016llx\n",
                all[0], all[1], all[2], all[3], static_cast<unsigned long long>(hash));
  }
  return *std::max_element(all.begin(), all.end()) <= 1 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  const int status = Run(argc, argv);
  MPI_Finalize();
  return status;
}
