// SPDX-License-Identifier: Apache-2.0
#include "conversion.h"

#include <algorithm>
#include <map>
#include <string_view>

namespace rmsnorm::tools {
namespace {

// A word for a shell.
std::string Quoted(const std::string& word) {
  const auto is_plain = [](char c) {
    return ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z') || ('0' <= c && c <= '9') ||
           std::string_view("_./+,@%=-").find(c) != std::string_view::npos;
  };
  if (std::all_of(word.begin(), word.end(), is_plain)) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

// A line that saves an expression of NumPy, which has the path of the file as f, beside the file.
// The output's name ends in the type, such as x.f32.npy.
std::string Line(const std::string& path, const std::string& expression,
                 const std::string& type = "f32") {
  const std::string out = path.substr(0, path.rfind('.')) + "." + type + ".npy";
  return "convert it: python3 -c \"import numpy as n, sys; f = sys.argv[1]; n.save(sys.argv[2], " +
         expression + ")\" " + Quoted(path) + " " + Quoted(out);
}

}  // namespace

std::string NpyConversion(const std::string& path, const std::string& descr) {
  // NumPy writes bf16, which it does not know, as two bytes of any meaning.
  if (descr == "|V2" || descr == "<V2") {
    return "; if this is bf16, " +
           Line(path, "(n.load(f).view('<u2').astype('<u4') << 16).view('<f4')");
  }
  // Floating-point numbers, integers and booleans, in any order of bytes.
  const size_t kind = descr.find_first_not_of("|<>=");
  if (kind == std::string::npos || descr.find_first_of("fiub", kind) != kind) return "";
  const bool is_f16 = descr.compare(kind, std::string::npos, "f2") == 0;
  return "; " + Line(path,
                     std::string("n.asarray(n.load(f), '<f") + (is_f16 ? "2" : "4") + "', 'C')",
                     is_f16 ? "f16" : "f32");
}

std::string SafetensorsConversion(const std::string& path, const std::string& dtype,
                                  const std::vector<size_t>& shape, size_t begin) {
  static const std::map<std::string, std::string> kNumpyTypes = {
      {"F64", "<f8"}, {"I64", "<i8"}, {"I32", "<i4"}, {"I16", "<i2"}, {"I8", "i1"},
      {"U64", "<u8"}, {"U32", "<u4"}, {"U16", "<u2"}, {"U8", "u1"},   {"BOOL", "?"}};
  const auto type = kNumpyTypes.find(dtype);
  if (type == kNumpyTypes.end()) return "";
  std::string sizes;
  for (const size_t size : shape) sizes += std::to_string(size) + ",";
  return "; " + Line(path, "n.memmap(f, '" + type->second + "', 'r', " + std::to_string(begin) +
                               ", (" + sizes + ")).astype('<f4')");
}

}  // namespace rmsnorm::tools
