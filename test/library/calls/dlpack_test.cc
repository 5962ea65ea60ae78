// SPDX-License-Identifier: Apache-2.0
// DLPack tensors become views of the same memory, or are refused with a reason.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <rmsnorm/dlpack.hpp>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr DLDataType kF32 = {kDLFloat, 32, 1};

// A dense or strided tensor; its shape and strides live as long as this object.
struct Tensor {
  Tensor(void* data, const DLDataType& type, std::vector<std::int64_t> sizes,
         std::vector<std::int64_t> steps = {})
      : shape(std::move(sizes)), strides(std::move(steps)) {
    dl.data = data;
    dl.device = {kDLCPU, 0};
    dl.ndim = static_cast<int>(shape.size());
    dl.dtype = type;
    dl.shape = shape.data();
    dl.strides = strides.empty() ? nullptr : strides.data();
    dl.byte_offset = 0;
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;

  std::vector<std::int64_t> shape, strides;
  DLTensor dl;
};

template <class Call>
void ExpectRefused(rmsnorm_status status, const std::string& part, const Call& call) {
  try {
    call();
    ADD_FAILURE() << "taken, not refused for: " << part;
  } catch (const rmsnorm::Error& error) {
    EXPECT_EQ(error.status(), status) << error.what();
    EXPECT_NE(std::string(error.what()).find("DLPack tensor: " + part), std::string::npos)
        << error.what();
  }
}

class Dlpack : public testing::Test {
 protected:
  // Tests the tensor as an input and as an output.
  void ExpectBothRefused(rmsnorm_status status, const std::string& part) {
    ExpectRefused(status, part, [&] { rmsnorm::dlpack_input(tensor_.dl); });
    ExpectRefused(status, part, [&] { rmsnorm::dlpack_output(tensor_.dl); });
  }

  std::vector<float> data_ = std::vector<float>(24, 1.0f);
  Tensor tensor_{data_.data(), kF32, {2, 3, 4}};
};

// A view of the same memory: dense without strides, else with them and the byte offset.
TEST_F(Dlpack, ShapeStridesAndOffset) {
  Tensor strided(data_.data(), kF32, {1, 2, 1, 2, 3}, {99, -12, 0, 4, 1});
  strided.dl.byte_offset = 13 * sizeof(float);
  DLManagedTensor managed = {};
  managed.dl_tensor = strided.dl;
  const std::vector<std::int64_t> dense = {12, 4, 1};
  const auto expect_like = [](const rmsnorm::ConstView& view, const Tensor& tensor,
                              const std::vector<std::int64_t>& strides) {
    EXPECT_EQ(view.get()->data, static_cast<char*>(tensor.dl.data) + tensor.dl.byte_offset);
    EXPECT_EQ(view.get()->dtype, RMSNORM_F32);
    ASSERT_EQ(view.get()->ndim, tensor.dl.ndim);
    for (std::size_t i = 0; i < strides.size(); ++i) {
      EXPECT_EQ(view.get()->shape[i], static_cast<std::size_t>(tensor.shape[i]));
      EXPECT_EQ(view.get()->stride[i], strides[i]);
    }
  };
  expect_like(rmsnorm::dlpack_input(tensor_.dl), tensor_, dense);
  expect_like(rmsnorm::dlpack_output(tensor_.dl), tensor_, dense);
  expect_like(rmsnorm::dlpack_input(managed), strided, strided.strides);
  expect_like(rmsnorm::dlpack_output(managed), strided, strided.strides);
}

TEST_F(Dlpack, Types) {
  const struct {
    DLDataType type;
    rmsnorm_dtype dtype;
  } taken[] = {
      {kF32, RMSNORM_F32}, {{kDLFloat, 16, 1}, RMSNORM_F16}, {{kDLBfloat, 16, 1}, RMSNORM_BF16}};
  for (const auto& [type, dtype] : taken) {
    tensor_.dl.dtype = type;
    EXPECT_EQ(rmsnorm::dlpack_input(tensor_.dl).get()->dtype, dtype);
  }
  const DLDataType refused[] = {{kDLFloat, 64, 1}, {kDLFloat, 8, 1}, {kDLBfloat, 32, 1},
                                {kDLInt, 32, 1},   {kDLUInt, 16, 1}, {kDLComplex, 32, 1},
                                {200, 32, 1},      {kDLFloat, 0, 1}};
  for (const DLDataType& type : refused) {
    tensor_.dl.dtype = type;
    ExpectBothRefused(RMSNORM_ERROR_DTYPE, "type code " + std::to_string(type.code) + " of " +
                                               std::to_string(type.bits) + " bits");
  }
  for (const std::uint16_t lanes : {std::uint16_t{0}, std::uint16_t{2}, std::uint16_t{65535}}) {
    tensor_.dl.dtype = {kDLFloat, 32, lanes};
    ExpectBothRefused(RMSNORM_ERROR_DTYPE, std::to_string(lanes) + " lanes");
  }
}

TEST_F(Dlpack, Devices) {
  for (const DLDeviceType device : {kDLCPU, kDLCUDAHost, kDLROCMHost}) {
    tensor_.dl.device.device_type = device;
    EXPECT_EQ(rmsnorm::dlpack_input(tensor_.dl).get()->data, data_.data());
  }
  for (const DLDeviceType device : {kDLCUDA, kDLMetal, kDLROCM, kDLCUDAManaged, kDLExtDev}) {
    tensor_.dl.device.device_type = device;
    ExpectBothRefused(RMSNORM_ERROR_DEVICE, "device type " + std::to_string(device));
  }
}

TEST_F(Dlpack, Shapes) {
  for (const int ndim : {0, -1, RMSNORM_MAX_DIMS + 1}) {
    tensor_.dl.ndim = ndim;
    ExpectBothRefused(RMSNORM_ERROR_SHAPE, std::to_string(ndim) + " dimensions");
  }
  tensor_.dl.ndim = 3;
  tensor_.shape[1] = -3;
  ExpectBothRefused(RMSNORM_ERROR_SHAPE, "-3 elements in dimension 1");
  tensor_.dl.shape = nullptr;
  ExpectBothRefused(RMSNORM_ERROR_NULL, "shape is null");
}

TEST_F(Dlpack, Alignment) {
  tensor_.dl.byte_offset = 2;
  ExpectBothRefused(RMSNORM_ERROR_LAYOUT, "data with byte_offset 2 is not aligned");
  tensor_.dl.dtype = {kDLBfloat, 16, 1};
  EXPECT_EQ(rmsnorm::dlpack_input(tensor_.dl).get()->data,
            reinterpret_cast<char*>(data_.data()) + 2);
  tensor_.dl.byte_offset = 1;
  ExpectBothRefused(RMSNORM_ERROR_LAYOUT, "data with byte_offset 1 is not aligned");
}

// An empty tensor may have a null pointer.
TEST_F(Dlpack, NullDataOfNoRows) {
  Tensor empty(nullptr, kF32, {0, 4});
  empty.dl.byte_offset = 64;
  EXPECT_EQ(rmsnorm::dlpack_input(empty.dl).get()->data, nullptr);
  rmsnorm::norm(rmsnorm::dlpack_input(empty.dl), {}, rmsnorm::dlpack_output(empty.dl));
}

#if defined(DLPACK_MAJOR_VERSION)
TEST_F(Dlpack, Versioned) {
  DLManagedTensorVersioned tensor = {};
  tensor.version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION + 1};
  tensor.dl_tensor = tensor_.dl;
  EXPECT_EQ(rmsnorm::dlpack_input(tensor).get()->data, data_.data());
  EXPECT_EQ(rmsnorm::dlpack_output(tensor).get()->data, data_.data());

  tensor.flags = DLPACK_FLAG_BITMASK_READ_ONLY;
  EXPECT_EQ(rmsnorm::dlpack_input(tensor).get()->data, data_.data());
  ExpectRefused(RMSNORM_ERROR_OPERAND, "it is read-only", [&] { rmsnorm::dlpack_output(tensor); });

  tensor.flags = 0;
  tensor.version.major = DLPACK_MAJOR_VERSION + 1;
  ExpectRefused(RMSNORM_ERROR_STRUCT_SIZE, "DLPack version",
                [&] { rmsnorm::dlpack_input(tensor); });
  ExpectRefused(RMSNORM_ERROR_STRUCT_SIZE, "DLPack version",
                [&] { rmsnorm::dlpack_output(tensor); });
}
#endif

}  // namespace
