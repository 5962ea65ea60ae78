// SPDX-License-Identifier: Apache-2.0
#include "safetensors.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include "cases/user_error.h"
#include "little_endian.h"

namespace rmsnorm::tools {
namespace {

using nlohmann::json;

constexpr size_t kLengthSize = 8;
constexpr uint64_t kMaxHeaderLength = 100'000'000;  // the official reader's limit
constexpr char kMetadata[] = "__metadata__";

// An object of objects that hold arrays.
constexpr size_t kMaxDepth = 3;

constexpr std::pair<std::string_view, Dtype> kDtypes[] = {
    {"F32", Dtype::f32}, {"F16", Dtype::f16}, {"BF16", Dtype::bf16}, {"I8", Dtype::i8}};

// A tensor in the header. Its dtype is unchecked, and need not be one of ours.
struct Entry {
  std::string name;
  std::string dtype;
  std::vector<size_t> shape;
  size_t begin;
  size_t end;
};

std::optional<Dtype> FindDtype(std::string_view name) {
  for (const auto& [known, dtype] : kDtypes) {
    if (name == known) return dtype;
  }
  return std::nullopt;
}

std::string Quoted(const std::string& name) { return "'" + name + "'"; }

[[noreturn]] void FailTensor(const std::string& name, const std::string& problem) {
  throw cases::UserError("tensor " + Quoted(name) + ": " + problem);
}

// A value of the header's JSON. One of nlohmann-json would not do: its destructor allocates memory,
// and ends the program where there is none.
struct Value {
  enum class Kind { kString, kObject, kSizes, kOther };
  Kind kind = Kind::kOther;
  std::string string;
  std::map<std::string, Value> members;  // of an object
  std::vector<size_t> sizes;             // of an array of sizes
};

// Builds the header from the events of nlohmann-json's parser. The format allows neither equal keys
// nor deep nesting.
class HeaderParser : public nlohmann::json_sax<json> {
 public:
  Value header;

  bool null() override { return Add({}); }
  bool boolean(bool) override { return Add({}); }
  bool number_integer(number_integer_t) override { return Add({}); }
  bool number_unsigned(number_unsigned_t value) override {
    if (open_.back()->kind != Value::Kind::kSizes) return Add({});
    open_.back()->sizes.push_back(static_cast<size_t>(value));
    return true;
  }
  bool number_float(number_float_t, const string_t&) override { return Add({}); }
  bool string(string_t& value) override {
    return Add({Value::Kind::kString, std::move(value), {}, {}});
  }
  bool binary(binary_t&) override { return Add({}); }  // never in JSON
  bool start_object(size_t) override { return Open(Value::Kind::kObject); }
  bool start_array(size_t) override { return Open(Value::Kind::kSizes); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }

  bool key(string_t& name) override {
    if (open_.back()->members.count(name) != 0) {
      throw cases::UserError("the header names " + Quoted(name) + " twice");
    }
    key_ = std::move(name);
    return true;
  }

  bool parse_error(size_t byte, const std::string&, const json::exception& error) override {
    if (dynamic_cast<const json::out_of_range*>(&error) != nullptr) {
      throw cases::UserError("the header holds a number that is out of range");
    }
    throw cases::UserError("the header is not valid JSON (byte " + std::to_string(byte) + ")");
  }

 private:
  bool Add(Value value) {
    Place() = std::move(value);
    return true;
  }
  bool Open(Value::Kind kind) {
    if (open_.size() == kMaxDepth) throw cases::UserError("the header's JSON is nested too deeply");
    Value& place = Place();
    place = {kind, {}, {}, {}};
    open_.push_back(&place);
    return true;
  }
  bool Close() {
    open_.pop_back();
    return true;
  }

  // The place for the next value.
  Value& Place() {
    if (open_.empty()) return header;
    Value& parent = *open_.back();
    if (parent.kind == Value::Kind::kObject) return parent.members[key_];
    parent.kind = Value::Kind::kOther;  // an array, but not of sizes
    return element_;
  }

  std::vector<Value*> open_;  // the enclosing objects and arrays
  std::string key_;
  Value element_;  // of an array that is not one of sizes
};

Value ParseHeader(const std::string& text) {
  // nlohmann-json would skip a byte order mark before the object, and would end the text at a NUL.
  if (text.substr(0, 1) != "{" || text.find('\0') != std::string::npos) {
    throw cases::UserError("the header is not a JSON object");
  }
  HeaderParser parser;
  json::sax_parse(text, &parser);
  return std::move(parser.header);
}

void CheckMetadata(const Value& metadata) {
  const auto is_string = [](const auto& member) {
    return member.second.kind == Value::Kind::kString;
  };
  if (metadata.kind != Value::Kind::kObject ||
      !std::all_of(metadata.members.begin(), metadata.members.end(), is_string)) {
    throw cases::UserError(std::string(kMetadata) + " is not an object of strings");
  }
}

// Returns the member `key` of a tensor, or null if it is of another kind or missing.
const Value* FindMember(const Value& tensor, const char* key, Value::Kind kind) {
  const auto found = tensor.members.find(key);
  return found == tensor.members.end() || found->second.kind != kind ? nullptr : &found->second;
}

// Returns the member `key` of a tensor, a list of sizes.
std::vector<size_t> ReadSizes(const std::string& name, const Value& tensor, const char* key) {
  const Value* const found = FindMember(tensor, key, Value::Kind::kSizes);
  if (found == nullptr) FailTensor(name, std::string("'") + key + "' is not a list of sizes");
  return found->sizes;
}

Entry ReadEntry(const std::string& name, const Value& tensor, size_t data_size) {
  if (tensor.kind != Value::Kind::kObject) FailTensor(name, "not described by an object");
  const Value* const dtype = FindMember(tensor, "dtype", Value::Kind::kString);
  if (dtype == nullptr) FailTensor(name, "'dtype' is not a string");
  const std::vector<size_t> offsets = ReadSizes(name, tensor, "data_offsets");
  if (offsets.size() != 2) FailTensor(name, "'data_offsets' is not a pair");
  Entry entry{name, dtype->string, ReadSizes(name, tensor, "shape"), offsets[0], offsets[1]};
  if (entry.begin > entry.end || entry.end > data_size) {
    FailTensor(name, "offsets " + ShapeText(offsets) + " lie outside the " +
                         std::to_string(data_size) + " bytes of data (is the file truncated?)");
  }
  if (const auto known = FindDtype(entry.dtype)) {
    const size_t expected = ByteSize({*known, entry.shape});
    if (expected != entry.end - entry.begin) {
      FailTensor(name, "shape " + ShapeText(entry.shape) + " of " + entry.dtype + " needs " +
                           std::to_string(expected) + " bytes, its offsets hold " +
                           std::to_string(entry.end - entry.begin));
    }
  }
  return entry;
}

// As the official reader does, rejects holes, overlaps, and data that no tensor owns.
void CheckTiling(const std::vector<Entry>& entries, size_t data_size) {
  std::vector<const Entry*> in_order;
  for (const Entry& entry : entries) in_order.push_back(&entry);
  std::sort(in_order.begin(), in_order.end(), [](const Entry* a, const Entry* b) {
    return std::tie(a->begin, a->end) < std::tie(b->begin, b->end);
  });
  size_t end = 0;
  for (const Entry* entry : in_order) {
    if (entry->begin != end) {
      FailTensor(entry->name, "starts at byte " + std::to_string(entry->begin) +
                                  " of the data, the tensor before it ends at " +
                                  std::to_string(end));
    }
    end = entry->end;
  }
  if (end != data_size) {
    throw cases::UserError("the tensors end at byte " + std::to_string(end) + " of " +
                           std::to_string(data_size) + " bytes of data");
  }
}

// The format's name of a type.
std::string_view DtypeWord(Dtype dtype) {
  return std::find_if(std::begin(kDtypes), std::end(kDtypes),
                      [dtype](const auto& known) { return known.second == dtype; })
      ->first;
}

// Some names for a message: "'a', 'b', 'c' and 17 more".
std::string SomeNames(const std::vector<Entry>& entries) {
  constexpr size_t kShown = 3;
  std::string names;
  for (size_t i = 0; i < std::min(kShown, entries.size()); ++i) {
    names += (i == 0 ? "" : ", ") + Quoted(entries[i].name);
  }
  if (entries.size() > kShown) names += " and " + std::to_string(entries.size() - kShown) + " more";
  return names;
}

const Entry& Choose(const std::vector<Entry>& entries, const std::string& name) {
  if (entries.empty()) throw cases::UserError("the file holds no tensor");
  if (name.empty()) {
    if (entries.size() == 1) return entries[0];
    throw cases::UserError("the file holds " + std::to_string(entries.size()) +
                           " tensors, name one as FILE:TENSOR: " + SomeNames(entries));
  }
  for (const Entry& entry : entries) {
    if (entry.name == name) return entry;
  }
  throw cases::UserError("no tensor " + Quoted(name) + "; the file holds " + SomeNames(entries));
}

}  // namespace

Tensor ParseSafetensors(const InputFile& file, const std::string& name) {
  if (file.size() < kLengthSize) throw cases::UserError("too short for a .safetensors file");
  const uint64_t length = ReadLittleEndian(file.Read(0, kLengthSize));
  if (length > file.size() - kLengthSize) {
    throw cases::UserError("the header length " + std::to_string(length) +
                           " is beyond the file's end");
  }
  if (length > kMaxHeaderLength) {
    throw cases::UserError("the header length " + std::to_string(length) +
                           " is above the limit of " + std::to_string(kMaxHeaderLength));
  }
  const Value header = ParseHeader(file.Read(kLengthSize, length));
  const size_t data_begin = kLengthSize + length;
  const size_t data_size = file.size() - data_begin;

  std::vector<Entry> entries;
  for (const auto& [key, value] : header.members) {
    if (key == kMetadata) {
      CheckMetadata(value);
    } else {
      entries.push_back(ReadEntry(key, value, data_size));
    }
  }
  CheckTiling(entries, data_size);

  const Entry& entry = Choose(entries, name);
  const std::optional<Dtype> dtype = FindDtype(entry.dtype);
  if (!dtype || *dtype == Dtype::i8) {
    FailTensor(entry.name,
               "dtype '" + entry.dtype + "' is not supported: only F32, F16 and BF16 are");
  }
  return {{*dtype, entry.shape}, data_begin + entry.begin};
}

std::string SafetensorsHeader(const std::vector<std::pair<std::string, TensorInfo>>& tensors) {
  json header = json::object();
  size_t begin = 0;
  for (const auto& [name, info] : tensors) {
    const size_t end = begin + ByteSize(info);
    header[name] = {
        {"dtype", DtypeWord(info.dtype)}, {"shape", info.shape}, {"data_offsets", {begin, end}}};
    begin = end;
  }
  std::string text = header.dump();
  // Spaces up to a multiple of 8 align the data.
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return LittleEndian(text.size(), kLengthSize) + text;
}

}  // namespace rmsnorm::tools
