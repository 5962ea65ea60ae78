// SPDX-License-Identifier: Apache-2.0
#include "npy.h"

#include <charconv>
#include <optional>
#include <string_view>

#include "cases/user_error.h"
#include "little_endian.h"

namespace rmsnorm::tools {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr size_t kVersionSize = 2;

// Reads the literals of a header: a dict of strings, booleans and tuples of integers.
class HeaderReader {
 public:
  explicit HeaderReader(std::string_view text) : rest_(text) {}

  bool AtEnd() {
    SkipSpace();
    return rest_.empty();
  }

  bool Accept(std::string_view token) {
    SkipSpace();
    if (rest_.substr(0, token.size()) != token) return false;
    rest_.remove_prefix(token.size());
    return true;
  }

  void Expect(std::string_view token) {
    if (!Accept(token)) Fail();
  }

  std::string_view String() {
    SkipSpace();
    if (rest_.empty() || (rest_[0] != '\'' && rest_[0] != '"')) Fail();
    const size_t end = rest_.find(rest_[0], 1);
    if (end == std::string_view::npos) Fail();
    const std::string_view text = rest_.substr(1, end - 1);
    rest_.remove_prefix(end + 1);
    return text;
  }

  bool Boolean() {
    if (Accept("True")) return true;
    Expect("False");
    return false;
  }

  std::vector<size_t> Shape() {
    std::vector<size_t> shape;
    Expect("(");
    while (!Accept(")")) {
      shape.push_back(Integer());
      if (Accept(",")) continue;
      // In Python "(3, 4)" is a tuple, and "(3)" is not.
      if (shape.size() == 1) Fail();
      Expect(")");
      break;
    }
    return shape;
  }

  [[noreturn]] static void Fail() { throw cases::UserError("malformed .npy header"); }

 private:
  void SkipSpace() {
    rest_.remove_prefix(std::min(rest_.find_first_not_of(" \t\r\n"), rest_.size()));
  }

  size_t Integer() {
    SkipSpace();
    size_t value = 0;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (error == std::errc::result_out_of_range) throw cases::UserError("a dimension overflows");
    if (error != std::errc()) Fail();
    rest_.remove_prefix(static_cast<size_t>(end - rest_.data()));
    Accept("L");  // the suffix of a long in Python 2
    return value;
  }

  std::string_view rest_;
};

struct Header {
  std::optional<std::string_view> descr;
  std::optional<bool> fortran_order;
  std::optional<std::vector<size_t>> shape;
};

template <class T>
void SetOnce(std::optional<T>& field, T value) {
  if (field) HeaderReader::Fail();
  field = std::move(value);
}

Header ReadHeader(std::string_view text) {
  HeaderReader reader(text);
  Header header;
  reader.Expect("{");
  while (!reader.Accept("}")) {
    const std::string_view key = reader.String();
    reader.Expect(":");
    if (key == "descr") {
      if (reader.Accept("[")) throw cases::UserError("structured .npy data is not supported");
      SetOnce(header.descr, reader.String());
    } else if (key == "fortran_order") {
      SetOnce(header.fortran_order, reader.Boolean());
    } else if (key == "shape") {
      SetOnce(header.shape, reader.Shape());
    } else {
      HeaderReader::Fail();
    }
    if (!reader.Accept(",")) {
      reader.Expect("}");
      break;
    }
  }
  if (!reader.AtEnd() || !header.descr || !header.fortran_order || !header.shape) {
    HeaderReader::Fail();
  }
  return header;
}

Dtype ParseDescr(const std::string& descr) {
  if (descr == "<f4") return Dtype::f32;
  if (descr == "<f2") return Dtype::f16;
  throw cases::UserError("dtype '" + descr + "' is not supported: only '<f4' and '<f2' are");
}

}  // namespace

Tensor ParseNpy(const InputFile& file) {
  if (file.Read(0, kMagic.size()) != kMagic) throw cases::UserError("not a .npy file");
  size_t begin = kMagic.size();
  const auto next = [&file, &begin](size_t count) {
    std::string bytes = file.Read(begin, count);
    if (bytes.size() < count) throw cases::UserError("truncated .npy header");
    begin += count;
    return bytes;
  };
  const std::string version = next(kVersionSize);
  const int major = static_cast<unsigned char>(version[0]);
  const int minor = static_cast<unsigned char>(version[1]);
  if (major < 1 || major > 3 || minor != 0) {
    throw cases::UserError(".npy version " + std::to_string(major) + "." + std::to_string(minor) +
                           " is not supported: only 1.0, 2.0 and 3.0 are");
  }

  const std::string text = next(ReadLittleEndian(next(major == 1 ? 2 : 4)));
  const Header header = ReadHeader(text);
  if (*header.fortran_order) {
    throw cases::UserError("Fortran order is not supported: only C order is");
  }
  Tensor tensor{{ParseDescr(std::string(*header.descr)), *header.shape}, begin};
  const size_t expected = ByteSize(tensor.info);
  const size_t held = file.size() - begin;
  if (held != expected) {
    throw cases::UserError("shape " + ShapeText(tensor.info.shape) + " of " +
                           DtypeName(tensor.info.dtype) + " needs " + std::to_string(expected) +
                           " bytes, the file holds " + std::to_string(held));
  }
  return tensor;
}

}  // namespace rmsnorm::tools
