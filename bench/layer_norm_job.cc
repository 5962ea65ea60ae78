// SPDX-License-Identifier: Apache-2.0
#include "layer_norm_job.h"

#include "plain_loops.h"
#include "tolerance.h"

namespace rmsnorm::bench {

LayerNormJob::LayerNormJob(const Cell& cell)
    : Job(cell),
      bias_(NormalNumbers(cell.dtype, cell.d, 0.0f, 0.25f)),
      layer_norm_(cell.dtype, cell.d, tensors_.weight(), bias_.data(), Options().eps,
                  cell_.target.c_str()),
      layer_norm_reference_(cell.dtype, cell.d, tensors_.weight(), bias_.data(), Options().eps,
                            "reference"),
      rms_norm_(MakeModule(MakeContext(cell_.target.c_str()))),
      rms_norm_reference_(MakeModule(MakeContext("reference"))),
      streams_(layer_norm_.Streams(cell.rows)) {
  CountParts([this](const Context& context) { RunRmsNorm(MakeModule(context)); }, cell.rows);
}

void LayerNormJob::RunRmsNorm(const RmsNorm& module) {
  Forward(module, cell_.rows, tensors_.x(), tensors_.y());
}

void LayerNormJob::RunLayerNorm() {
  ForRangesInParts(cell_.rows, parts(), [this](size_t begin, size_t end) {
    layer_norm_.Forward(tensors_.x() + begin * row_bytes(), tensors_.y() + begin * row_bytes(),
                        end - begin, streams_);
  });
}

std::vector<Contender> LayerNormJob::OwnContenders() {
  return {
      Each(kLibrary, [this] { RunLayerNorm(); }),
      Memcpy(),
      Each(kRmsNorm, [this] { RunRmsNorm(rms_norm_); }),
      Each(kPlain,
           [this] {
             ForRangesInParts(cell_.rows, parts(), [this](size_t begin, size_t end) {
               PlainLayerNorm(cell_.dtype, tensors_.x() + begin * row_bytes(), tensors_.weight(),
                              bias_.data(), tensors_.y() + begin * row_bytes(), end - begin,
                              cell_.d, Options().eps);
             });
           }),
  };
}

std::string LayerNormJob::FindFaultInCopy() {
  const std::string fault = FindFaultOfLayerNorm();
  return fault.empty() ? FindFaultOfRmsNorm() : fault;
}

std::string LayerNormJob::FindFaultOfLayerNorm() {
  std::vector<float> weight(cell_.d);
  std::vector<float> bias(cell_.d);
  PlainWiden(cell_.dtype, tensors_.weight(), weight.data(), cell_.d);
  PlainWiden(cell_.dtype, bias_.data(), bias.data(), cell_.d);
  SpoilY();
  RunLayerNorm();
  return CompareY(
      [this](size_t first_row, size_t rows, uint8_t* y) {
        layer_norm_reference_.Forward(XFrom(first_row), y, rows);
      },
      [&](size_t first_row, size_t rows, const uint8_t* actual, const uint8_t* expected) {
        return FindElementBeyondLayerNormTolerance(cell_.dtype, first_row, rows, cell_.d,
                                                   weight.data(), bias.data(), actual, expected);
      });
}

std::string LayerNormJob::FindFaultOfRmsNorm() {
  SpoilY();
  RunRmsNorm(rms_norm_);
  const std::string fault = FindDifferenceInY(ExpectForward(rms_norm_reference_));
  return fault.empty() ? fault : "RMSNorm: " + fault;
}

}  // namespace rmsnorm::bench
