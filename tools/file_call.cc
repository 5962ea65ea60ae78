// SPDX-License-Identifier: Apache-2.0
#include "file_call.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "cases/user_error.h"
#include "little_endian.h"
#include "output_file.h"
#include "progress.h"
#include "tensor_file.h"

namespace rmsnorm::tools {
namespace {

using internal::kOperandRules;
using internal::OperandRule;
using internal::Shape;
using Sizes = std::vector<size_t>;

// Enough to keep the threads busy, and little enough that the results are still in the cache when
// they go into the file.
constexpr size_t kChunkBytes = size_t{4} << 20;

// Consecutive rows of x: a range of one leading dimension, one index of each dimension before it,
// and all indices of each dimension after it.
struct Chunk {
  Sizes begin;   // per leading dimension
  Sizes extent;  // per leading dimension
};

// A tensor of the call.
struct CallTensor {
  const FileOperand& file;
  TensorInfo info;
  Sizes leading = {};  // per leading dimension of x: equal to it, or 1 if rows share

  std::unique_ptr<InputTensor> input = {};  // only for an input

  TensorLocation location = {};  // only for an output
  OutputFile* output = nullptr;
  size_t begin = 0;  // offset of its data in the file
  std::vector<char> memory = {};

  // The part that belongs to the current chunk.
  char* elements = nullptr;
  size_t first = 0;
  size_t count = 0;

  const OperandRule& rule() const { return kOperandRules[file.operand]; }
};

[[noreturn]] void Refuse(const FileOperand& file, const std::string& problem) {
  throw cases::UserError(std::string(file.flag) + ": " + problem);
}

// The flag of each operand of a command, by the operand's name.
std::map<std::string, std::string> FlagsOf(const FileCommand& command) {
  std::map<std::string, std::string> flags;
  for (const FileOperand& file : command.operands) {
    if (file.help != nullptr) flags[kOperandRules[file.operand].name] = file.flag;
  }
  return flags;
}

// The leading dimensions of a tensor, one per leading dimension of x. Throws UserError if its shape
// or its type does not fit the operand.
Sizes LeadingDimensions(const CallTensor& tensor, const Sizes& x) {
  const OperandRule& rule = tensor.rule();
  const Sizes& shape = tensor.info.shape;
  const auto refuse = [&](const std::string& problem) {
    Refuse(tensor.file, "shape " + ShapeText(shape) + problem);
  };
  if (rule.dtype != 0 && tensor.info.dtype != static_cast<Dtype>(rule.dtype)) {
    Refuse(tensor.file,
           DtypeName(tensor.info.dtype) + "; it must be " + rmsnorm_dtype_name(rule.dtype));
  }
  const Sizes of_x(x.begin(), x.end() - 1);
  if (rule.shape == Shape::kRows) {
    if (shape != x) refuse(", but --input has " + ShapeText(x));
    return of_x;
  }
  if (rule.shape == Shape::kPerRow) {
    Sizes last_is_1 = of_x;
    last_is_1.push_back(1);
    if (shape != of_x && shape != last_is_1) {
      refuse(", but the rows of --input need " + ShapeText(of_x) + " or " + ShapeText(last_is_1));
    }
    return of_x;
  }
  if (shape.empty() || shape.back() != x.back()) {
    refuse(", but the rows of --input need " + ShapeText({x.back()}));
  }
  Sizes leading(x.size() - std::min(x.size(), shape.size()), 1);
  leading.insert(leading.end(), shape.begin(), shape.end() - 1);
  bool fits = leading.size() == of_x.size();
  for (size_t i = 0; fits && i < of_x.size(); ++i) fits = leading[i] == 1 || leading[i] == of_x[i];
  if (!fits) refuse(" does not broadcast to " + ShapeText(x) + ", the shape of --input");
  return leading;
}

// Merges dimensions of rows: a file may have more of them than a view.
void MergeDimensions(std::list<CallTensor>& tensors) {
  Sizes shape = tensors.front().leading;
  const auto ndim = static_cast<int32_t>(shape.size());
  std::vector<std::vector<ptrdiff_t>> strides;  // in rows; 0 where rows of x share one
  std::vector<ptrdiff_t*> of_tensors;
  for (const CallTensor& tensor : tensors) {
    std::vector<ptrdiff_t>& own = strides.emplace_back(shape.size());
    size_t step = 1;  // without rows, it may overflow
    for (size_t i = shape.size(); i-- > 0;) {
      own[i] = tensor.leading[i] == 1 ? 0 : static_cast<ptrdiff_t>(step);
      step *= std::max<size_t>(tensor.leading[i], 1);
    }
  }
  for (std::vector<ptrdiff_t>& own : strides) of_tensors.push_back(own.data());
  shape.resize(static_cast<size_t>(
      rmsnorm_merge_dims(ndim, shape.data(), of_tensors.data(), of_tensors.size())));
  auto stride = strides.begin();
  for (CallTensor& tensor : tensors) {
    tensor.leading = shape.empty() ? Sizes{1} : shape;
    for (size_t i = 0; i < shape.size(); ++i) {
      if ((*stride)[i] == 0) tensor.leading[i] = 1;
    }
    ++stride;
  }
}

// Calls work(chunk) for all rows in order, in chunks of at least one and at most `most_rows` rows,
// and shows a bar if that takes long. Without rows, it makes one call to check options and target.
void ForEachChunk(const Sizes& leading, size_t most_rows,
                  const std::function<void(const Chunk&)>& work) {
  size_t rows = 1;
  for (const size_t dimension : leading) rows *= dimension;
  Chunk chunk = {Sizes(leading.size()), leading};
  if (rows == 0) return work(chunk);

  size_t axis = leading.size() - 1;  // the dimension that chunks divide
  size_t rows_behind = 1;            // rows per index of that dimension
  while (axis > 0 && rows_behind * leading[axis] <= most_rows) rows_behind *= leading[axis--];
  const size_t most = std::max<size_t>(1, most_rows / rows_behind);

  Progress progress(rows);
  std::fill_n(chunk.extent.begin(), axis, 1);
  for (size_t done = 0; done < rows; done += chunk.extent[axis] * rows_behind) {
    progress.Update(done);
    size_t index = done / rows_behind;
    for (size_t i = axis + 1; i-- > 0; index /= leading[i]) chunk.begin[i] = index % leading[i];
    chunk.extent[axis] = std::min(most, leading[axis] - chunk.begin[axis]);
    work(chunk);
  }
}

class TensorCall {
 public:
  TensorCall(const FileCommand& command, const FileCall& call) : command_(command), call_(call) {
    // Detects bad output names before it reads any file.
    for (const FileOperand& file : command.operands) {
      if (IsGiven(file.operand)) ParseLocation(*call.location[file.operand]);
    }
    for (const bool outputs : {false, true}) {
      for (const FileOperand& file : command.operands) {
        if (IsGiven(file.operand) && command.IsOutput(file.operand) == outputs) Add(file);
      }
    }
    MergeDimensions(tensors_);
  }

  void Run() {
    OpenOutputs();
    const CallTensor& x = tensors_.front();
    size_t most_rows = std::max<size_t>(1, kChunkBytes / ElementSize(x.info.dtype) / d_);
    for (const CallTensor& tensor : tensors_) {
      // A sum over all rows cannot be made from chunks.
      if (tensor.output != nullptr && tensor.rule().shape == Shape::kColumns) most_rows = SIZE_MAX;
    }
    ForEachChunk(x.leading, most_rows, [this](const Chunk& chunk) { RunChunk(chunk); });
    for (OutputFile& file : files_) file.Sync();
    // Windows replaces no open file, and an output may replace an input.
    for (CallTensor& tensor : tensors_) tensor.input.reset();
    for (OutputFile& file : files_) file.Commit();
  }

 private:
  bool IsGiven(Operand operand) const { return call_.location[operand].has_value(); }

  CallTensor* Find(Operand operand) {
    for (CallTensor& tensor : tensors_) {
      if (tensor.file.operand == operand) return &tensor;
    }
    return nullptr;
  }

  void Add(const FileOperand& file) {
    const TensorLocation location = ParseLocation(*call_.location[file.operand]);
    if (!command_.IsOutput(file.operand)) {
      CallTensor& tensor = tensors_.emplace_back(CallTensor{file, {}});
      tensor.input = std::make_unique<InputTensor>(location);
      tensor.info = tensor.input->info();
      if (file.operand == internal::kX) CheckRows(tensor);
    } else {
      const CallTensor* const like = Find(file.like);
      CallTensor& tensor =
          tensors_.emplace_back(CallTensor{file, like ? like->info : TensorInfo{Dtype::f32, {d_}}});
      tensor.info.dtype = call_.dtype[file.operand].value_or(tensor.info.dtype);
      if (tensor.rule().dtype != 0) tensor.info.dtype = static_cast<Dtype>(tensor.rule().dtype);
      if (tensor.rule().shape == Shape::kPerRow) tensor.info.shape.pop_back();
      tensor.location = location;
    }
    tensors_.back().leading = LeadingDimensions(tensors_.back(), tensors_.front().info.shape);
  }

  void CheckRows(const CallTensor& x) {
    if (x.info.shape.empty()) Refuse(x.file, "a tensor without dimensions has no rows");
    d_ = x.info.shape.back();
    if (d_ == 0) Refuse(x.file, "shape " + ShapeText(x.info.shape) + " has rows of no elements");
  }

  // Outputs with the same file share it. The larger elements come first, which aligns all of them.
  void OpenOutputs() {
    std::map<std::filesystem::path, std::list<CallTensor*>> by_file;
    for (CallTensor& tensor : tensors_) {
      if (!tensor.input) by_file[FileKey(tensor.location.path)].push_back(&tensor);
    }
    for (auto& [key, tensors] : by_file) {
      tensors.sort([](const CallTensor* a, const CallTensor* b) {  // a stable sort
        return ElementSize(a->info.dtype) > ElementSize(b->info.dtype);
      });
      std::vector<std::pair<std::string, TensorInfo>> named;
      for (const CallTensor* const tensor : tensors) {
        std::string name = tensor->file.flag + 2;
        std::replace(name.begin(), name.end(), '-', '_');
        if (!tensor->location.name.empty()) name = tensor->location.name;
        named.emplace_back(name, tensor->info);
      }
      const TensorLocation& location = tensors.front()->location;
      const std::string header = FileHeader(location, named);
      OutputFile& file = files_.emplace_back(location.path);
      file.Write(header);
      size_t begin = header.size();
      for (CallTensor* const tensor : tensors) {
        tensor->output = &file;
        tensor->begin = begin;
        begin += ByteSize(tensor->info);
      }
    }
  }

  // A view of a chunk's elements of a tensor.
  rmsnorm_view ViewOf(CallTensor& tensor, const Chunk& chunk) {
    tensor.first = 0;
    tensor.count = 1;
    Sizes shape;
    for (size_t i = 0; i < tensor.leading.size(); ++i) {
      const bool is_shared = tensor.leading[i] == 1;
      shape.push_back(is_shared ? 1 : chunk.extent[i]);
      tensor.first = tensor.first * tensor.leading[i] + (is_shared ? 0 : chunk.begin[i]);
      tensor.count *= shape.back();
    }
    if (tensor.rule().shape != Shape::kPerRow) {
      shape.push_back(d_);
      tensor.first *= d_;
      tensor.count *= d_;
    }
    const Dtype dtype = tensor.info.dtype;
    const CallTensor* const place = Find(tensor.rule().in_place_of);
    if (tensor.input) {
      tensor.elements = tensor.input->Elements(tensor.first, tensor.count);
    } else if (place && place->input && ElementSize(place->info.dtype) == ElementSize(dtype)) {
      tensor.elements = place->elements;
    } else {
      tensor.memory.resize(tensor.count * ElementSize(dtype));
      tensor.elements = tensor.memory.data();
    }
    return rmsnorm_tensor(tensor.elements, static_cast<rmsnorm_dtype>(dtype),
                          static_cast<int32_t>(shape.size()), shape.data(), nullptr);
  }

  void RunChunk(const Chunk& chunk) {
    rmsnorm_view views[internal::kOperands];
    rmsnorm_operands operands = rmsnorm_no_operands();
    for (CallTensor& tensor : tensors_) {
      const Operand operand = tensor.file.operand;
      if (tensor.rule().*command_.role == Role::kAbsent) continue;
      views[operand] = ViewOf(tensor, chunk);
      internal::SetViewIn(operands, operand, &views[operand]);
    }
    if (command_.call(&operands, &call_.options, &call_.context) != RMSNORM_OK) {
      throw cases::UserError(InFlags(FlagsOf(command_), rmsnorm_error_message()));
    }
    for (const CallTensor& tensor : tensors_) {
      if (tensor.output == nullptr) continue;
      const size_t size = ElementSize(tensor.info.dtype);
      ConvertByteOrder(tensor.elements, tensor.count, size);
      tensor.output->Write({tensor.elements, tensor.count * size},
                           tensor.begin + tensor.first * size);
    }
  }

  const FileCommand& command_;
  const FileCall& call_;
  std::list<CallTensor> tensors_;  // x first, inputs before outputs
  std::list<OutputFile> files_;
  size_t d_ = 0;
};

}  // namespace

std::string FlagOf(internal::Option option) {
  std::string flag = std::string("--") + internal::kOptionRules[option].name;
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

std::string InFlags(std::map<std::string, std::string> flags, const std::string& message) {
  for (int i = 0; i < internal::kOptions; ++i) {
    const auto option = static_cast<internal::Option>(i);
    flags[internal::kOptionRules[option].name] = FlagOf(option);
  }
  constexpr char kLettersOfNames[] = "abcdefghijklmnopqrstuvwxyz_0123456789";
  constexpr std::string_view kOptions = "options: ";
  std::string text;
  size_t begin = message.rfind(kOptions, 0) == 0 ? kOptions.size() : 0;
  while (begin < message.size()) {
    const size_t after_word = message.find_first_not_of(kLettersOfNames, begin);
    const std::string word = message.substr(begin, after_word - begin);
    const auto flag = flags.find(word);
    text += flag == flags.end() ? word : flag->second;
    if (after_word == std::string::npos) break;
    begin = std::min(message.find_first_of(kLettersOfNames, after_word), message.size());
    text += message.substr(after_word, begin - after_word);
  }
  return text;
}

void Run(const FileCommand& command, const FileCall& call) { TensorCall(command, call).Run(); }

}  // namespace rmsnorm::tools
