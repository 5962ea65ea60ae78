// SPDX-License-Identifier: Apache-2.0
// The command reads and writes .npy and .safetensors files, and refuses every kind of bad one.
// Lines of text work as in file_commands_test.cc.
#include <gtest/gtest.h>

#include <cstdint>

#include "file_command.h"

#ifdef __has_feature
#if __has_feature(address_sanitizer)
#define RMSNORM_ADDRESS_SANITIZER
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#define RMSNORM_ADDRESS_SANITIZER
#endif

namespace rmsnorm::test {
namespace {

class FileFormats : public FileCommandTest {
 protected:
  // The output of `apply` for an input in FILE:TENSOR notation.
  StoredTensor Applied(const std::string& input) const {
    ExpectSuccess(Run({"apply", "--input", input, "--output", "applied.safetensors"}));
    const auto tensors = ReadSafetensors(ReadFile(File("applied.safetensors")));
    std::filesystem::remove(File("applied.safetensors"));
    return tensors.at("output");
  }
};

const std::string kData = InFileOrder(Bytes(Numbers(6)), sizeof(float));

// ------------------------------------------------------------------------------------- reading

TEST_F(FileFormats, ReadsEveryNpyHeader) {
  Make("plain.npy", Npy(NpyHeader("<f4", "(2, 3)"), kData));
  const StoredTensor expected = Applied("plain.npy");
  for (const std::string header :
       {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }          \n",
        "{\"shape\": (2,3,), \"fortran_order\": False, \"descr\": \"<f4\"}",
        " { 'shape' : ( 2L , 3L ) ,\n'descr':'<f4','fortran_order':False } "}) {
    for (const int version : {1, 2, 3}) {
      SCOPED_TRACE(header + " version " + std::to_string(version));
      Make("x.npy", Npy(header, kData, version));
      const StoredTensor y = Applied("x.npy");
      EXPECT_EQ(y.data, expected.data);
      EXPECT_EQ(y.shape, (Sizes{2, 3}));
    }
  }
}

// The order in the header, tensors of other types, and colons in paths do not matter.
TEST_F(FileFormats, FindsATensorByName) {
  const std::vector<float> a = {1, 2};
  const std::vector<float> b = {3, 4};
  Make("a.npy", NpyOf({"F32", {2}, Bytes(a)}));
  Make("b.npy", NpyOf({"F32", {2}, Bytes(b)}));
  const std::string ya = Applied("a.npy").data;
  const std::string yb = Applied("b.npy").data;
  ASSERT_NE(ya, yb);
  const std::string two = Safetensors(
      "{\"__metadata__\": {\"format\": \"pt\", \"\": \"\"}, " + Entry("x:b", "F32", "[2]", 16, 24) +
          "," + Entry("i", "I64", "[]", 8, 16) + "," + Entry("a", "F32", "[2]", 0, 8) + "}   ",
      InFileOrder(Bytes(a), 4) + "12345678" + InFileOrder(Bytes(b), 4));
  std::filesystem::create_directory(File("d.safetensors"));
  for (const std::string name : {
           "two.safetensors",
           "zw\xc3\xb6lf.safetensors",
           "d.safetensors/two.safetensors",
#ifndef _WIN32  // where a file's name has no colon
           "a:b.safetensors",
           "a.safetensors:b.safetensors",
#endif
       }) {
    Make(name, two);
    EXPECT_EQ(Applied(name + ":a").data, ya) << name;
    EXPECT_EQ(Applied(name + ":x:b").data, yb) << name;
  }
  Make("d.safetensors/a.npy", ReadFile(File("a.npy")));
  EXPECT_EQ(Applied("d.safetensors/a.npy").data, ya);
  // The only tensor needs no name.
  Make("one.safetensors",
       Safetensors("{\"__metadata__\": {}, " + Entry("x", "F32", "[2]", 0, 8) + "}",
                   InFileOrder(Bytes(a), 4)));
  EXPECT_EQ(Applied("one.safetensors").data, ya);
  EXPECT_EQ(Applied("one.safetensors:x").data, ya);
}

TEST_F(FileFormats, ReadsTheLongestPathThatNamesAFile) {
  const std::string names[] = {"y",
                               "a:b",
                               ".safetensors:y",
                               "a.safetensors:y",
                               "a.safetensors:b.safetensors:y",
                               "a.safetensors:",
                               "a.safetensors",
                               "a.npy"};
  // Each tensor has its own number of rows.
  std::string header;
  size_t rows = 0;
  for (const std::string& name : names) {
    const std::string shape = "[" + std::to_string(++rows) + ", 0, 2]";
    header += (header.empty() ? "{" : ",") + Entry(name, "F32", shape, 0, 0);
  }
  Make("x.safetensors", Safetensors(header + "}", ""));
  rows = 0;
  for (const std::string& name : names) {
    EXPECT_EQ(Applied("x.safetensors:" + name).shape, (Sizes{++rows, 0, 2})) << name;
  }
  const std::string longer = "x.safetensors:a.npy";
  Make(longer, NpyOf({"F32", {0, 7}, ""}));
  EXPECT_EQ(Applied(longer).shape, (Sizes{0, 7}));
  std::filesystem::remove(File("x.safetensors"));
  ExpectRefused("apply --output y.npy --input x.safetensors:a.safetensors:y",
                "x.safetensors:a.safetensors: No such file");
  // For writing as for reading: the file exists.
  Make("y.safetensors", "");
  ExpectSuccess(Run({"apply", "--input", longer, "--output", "y.safetensors:a.safetensors:y"}));
  EXPECT_EQ(ReadSafetensors(ReadFile(File("y.safetensors"))).count("a.safetensors:y"), 1u);
}

TEST_F(FileFormats, ReadsAFileOfManyTensors) {
  std::string header = "{";
  for (int i = 0; i < 300000; ++i) {
    header += Entry("x" + std::to_string(i), "F32", "[0, 2]", 0, 0) + ",";
  }
  Make("x.safetensors", Safetensors(header + Entry("last", "F32", "[0, 3]", 0, 0) + "}", ""));
  EXPECT_EQ(Applied("x.safetensors:last").shape, (Sizes{0, 3}));
}

// ------------------------------------------------------------------------------------- writing

// file_commands_test.cc compares each .npy file with numpy's. This one has too many dimensions for
// version 1, which has two bytes for the length.
TEST_F(FileFormats, WritesNpyOfManyDimensions) {
  Sizes shape(30000, 1);
  shape.push_back(2);
  Make("x.npy", Npy(NpyHeader("<f4", "(" + Listed(shape) + ")"), Bytes<float>({1, 2}), 2));
  ExpectSuccess(Run({"apply", "--input", "x.npy", "--output", "y.npy"}));
  const std::string y = ReadFile(File("y.npy"));
  EXPECT_EQ(y.substr(0, 8), std::string("\x93NUMPY\2\0", 8));
  EXPECT_EQ((y.size() - 8) % 64, 0u);
  EXPECT_EQ(Applied("y.npy").shape, shape);
}

TEST_F(FileFormats, WritesAlignedSafetensorsOfAnyName) {
  Make("x.npy", NpyOf({"F32", {2}, Bytes<float>({1, 2})}));
  for (const std::string name : {"a", "ab", "output", "a:b \"c\"\\\n\xc3\xa9"}) {
    ExpectSuccess(Run({"apply", "--input", "x.npy", "--output", "y.safetensors:" + name}));
    const std::string file = ReadFile(File("y.safetensors"));
    EXPECT_EQ(static_cast<unsigned char>(file[0]) % 8, 0);
    EXPECT_EQ(file[8], '{');
    EXPECT_EQ(ReadSafetensors(file).count(name), 1u);
  }
}

// --------------------------------------------------------------------------------- bad input

TEST_F(FileFormats, RefusesMalformedNpy) {
  const std::string good = NpyHeader("<f4", "(2, 3)");
  const auto with = [](const std::string& header) { return Npy(header, kData); };
  const auto shape = [](const std::string& text) { return Npy(NpyHeader("<f4", text), kData); };
  const auto descr = [](const std::string& text) { return Npy(NpyHeader(text, "(2, 3)"), kData); };
  const std::pair<std::string, Words> cases[] = {
      {"not a .npy file", {"", "text\n", "\x93NUMP"}},
      {"truncated",
       {"\x93NUMPY", "\x93NUMPY\1", std::string("\x93NUMPY\1\0", 8),
        std::string("\x93NUMPY\1\0\x76", 9), std::string("\x93NUMPY\2\0\x76\0\0", 11),
        std::string("\x93NUMPY\1\0\xff\xff{}", 12),
        std::string("\x93NUMPY\2\0\xff\xff\xff\xff{}", 14), with(good).substr(0, 40)}},
      {"version 0.0", {Npy(good, kData, 0)}},
      {"version 4.0", {Npy(good, kData, 4)}},
      {"version 1.1", {std::string("\x93NUMPY\1\1", 8) + with(good).substr(8)}},
      {"malformed",
       {with(""),
        with("{}"),
        with("["),
        with("{"),
        with("{'descr': '<f4', 'fortran_order': False}"),
        with("{'descr': '<f4', 'shape': (2, 3)}"),
        with("{'fortran_order': False, 'shape': (2, 3)}"),
        with(good + "x"),
        with("x" + good),
        with("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}"),
        with("{'descr': '<f4', 'other': False, 'fortran_order': False, 'shape': (2, 3)}"),
        with("{'descr': '<f4, 'fortran_order': False, 'shape': (2, 3)}"),
        with("{'descr': <f4, 'fortran_order': False, 'shape': (2, 3)}"),
        with("{'descr': '<f4' 'fortran_order': False, 'shape': (2, 3)}"),
        with("{'descr': '<f4', 'fortran_order': 0, 'shape': (2, 3)}"),
        with("{'descr': '<f4', 'fortran_order': False, 'shape': [2, 3]}"),
        shape("((2, 3))"),
        shape(std::string(50000, '(')),
        shape("(6)"),
        shape("(2, -3)"),
        shape("(2, 3.0)"),
        shape("(2 3)"),
        shape("(2, 3"),
        shape("(,)")}},
      {"Fortran order", {with("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3)}")}},
      {"structured", {with("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2, 3)}")}},
      {"overflows",
       {shape("(99999999999999999999, 3)"), shape("(4294967296, 4294967296)"),
        shape("(4611686018427387904, 1)")}},
      {"needs 4 bytes", {shape("()")}},
      {"needs 16 bytes, the file holds 24", {shape("(2, 2)")}},
      {"needs 32 bytes, the file holds 24", {shape("(2, 4)")}},
      {"needs 24 bytes, the file holds 23", {Npy(good, kData.substr(1))}},
      {"needs 24 bytes, the file holds 25", {Npy(good, kData + "x")}},
      {"'a\\nb\\u0001", {descr("a\nb\x01\xff")}}};
  ASSERT_EQ(Applied(Make("good.npy", with(good))).shape, (Sizes{2, 3}));
  for (const auto& [problem, files] : cases) {
    for (const std::string& bytes : files) {
      SCOPED_TRACE(bytes.substr(0, 200));
      Make("bad.npy", bytes);
      ExpectRefused("apply --input bad.npy --output y.npy", problem);
    }
  }
  for (const std::string type : {"<f8", ">f4", "=f4", "<i4", "|V2", ""}) {
    Make("bad.npy", descr(type));
    ExpectRefused("apply --input bad.npy --output y.npy", "'" + type + "' is not supported");
  }
}

#ifndef _WIN32

// The last part of a message, run by a shell, makes a file that the command takes.
TEST_F(FileFormats, SaysHowToConvert) {
  // Debian's NumPy is for Debian's Python, which need not be the first in PATH.
  const std::string path = "PATH=/usr/bin:$PATH ";
  if (std::system((path + "python3 -c 'import numpy' 2> /dev/null").c_str()) != 0) {
    GTEST_SKIP() << "no NumPy";
  }
  const auto convert = [&, this](const std::string& input) {
    const Outcome outcome = Run({"apply", "--input", input, "--output", "y.npy"});
    ExpectUserError(outcome, "not supported");
    const std::string before = "convert it: ";
    const size_t line = outcome.err.find(before);
    if (line == std::string::npos) return ADD_FAILURE() << outcome.err, StoredTensor();
    const std::string shell = outcome.err.substr(line + before.size());
    const std::string out = "x.f" + std::string(shell.find("f16.npy") == shell.npos ? "32" : "16");
    std::filesystem::remove(File(out + ".npy"));
    const std::string command = "cd '" + File(".") + "' && " + path + shell;
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
    return Applied(shell.find("it'") == shell.npos ? out + ".npy" : "it's " + out + ".npy");
  };
  // The elements of a 2 x 3 tensor.
  const auto bytes = [](auto elements, bool is_big = false, bool is_fortran = false) {
    const size_t size = sizeof elements[0];
    std::string data;
    for (const size_t i : is_fortran ? Sizes{0, 3, 1, 4, 2, 5} : Sizes{0, 1, 2, 3, 4, 5}) {
      std::string one = InFileOrder(Bytes(decltype(elements){elements[i]}), size);
      if (is_big) std::reverse(one.begin(), one.end());
      data += one;
    }
    return data;
  };
  const std::vector<double> f64 = {1, 2, 3, 4, 5, 6};
  const std::vector<float> f32(f64.begin(), f64.end());
  const std::vector<uint16_t> f16 = {0x3C00, 0x4000, 0x4200, 0x4400, 0x4500, 0x4600};
  const std::vector<uint16_t> bf16 = {0x3F80, 0x4000, 0x4040, 0x4080, 0x40A0, 0x40C0};
  const auto header = [](const std::string& descr, bool is_fortran = false) {
    return "{'descr': '" + descr + "', 'fortran_order': " + (is_fortran ? "True" : "False") +
           ", 'shape': (2, 3), }";
  };
  Make("f32.npy", Npy(header("<f4"), bytes(f32)));
  Make("f16.npy", Npy(header("<f2"), bytes(f16)));
  const StoredTensor from_f32 = Applied("f32.npy");
  const StoredTensor from_f16 = Applied("f16.npy");
  const auto expect = [](const StoredTensor& actual, const StoredTensor& expected) {
    EXPECT_EQ(actual.dtype, expected.dtype);
    EXPECT_EQ(actual.shape, expected.shape);
    EXPECT_EQ(actual.data, expected.data);
  };
  for (const auto& [npy, expected] : std::vector<std::pair<std::string, StoredTensor>>{
           {Npy(header("<f8"), bytes(f64)), from_f32},
           {Npy(header(">f8"), bytes(f64, true)), from_f32},
           {Npy(header(">f4"), bytes(f32, true)), from_f32},
           {Npy(header(">f2"), bytes(f16, true)), from_f16},
           {Npy(header("<f4", true), bytes(f32, false, true)), from_f32},
           {Npy(header(">f8", true), bytes(f64, true, true)), from_f32},
           {Npy(header("<f2", true), bytes(f16, false, true)), from_f16},
           {Npy(header("<i8"), bytes(std::vector<int64_t>(f64.begin(), f64.end()))), from_f32},
           {Npy(header("|u1"), bytes(std::vector<uint8_t>(f64.begin(), f64.end()))), from_f32},
           {Npy(header("|V2"), bytes(bf16)), from_f32}}) {
    SCOPED_TRACE(npy.substr(10, 60));
    Make("x.npy", npy);
    expect(convert("x.npy"), expected);
  }
  Make("it's x.npy", Npy(header("<f8"), bytes(f64)));
  expect(convert("it's x.npy"), from_f32);
  Make("x.safetensors",
       Safetensors("{" + Entry("a", "U8", "[1]", 0, 1) + "," + Entry("b", "F64", "[2,3]", 1, 49) +
                       "," + Entry("c c", "I16", "[2,3]", 49, 61) + "}",
                   "1" + bytes(f64) + bytes(std::vector<int16_t>(f64.begin(), f64.end()))));
  expect(convert("x.safetensors:b"), from_f32);
  expect(convert("x.safetensors:c c"), from_f32);
}

#endif

// AddressSanitizer and an emulator need more memory than the command.
#if !defined(_WIN32) && !defined(RMSNORM_ADDRESS_SANITIZER)

TEST_F(FileFormats, SaysInOneLineThatMemoryRunsOut) {
  const char* const wrapper = std::getenv("RMSNORM_COMMAND_WRAPPER");
  if (wrapper != nullptr && *wrapper != '\0') GTEST_SKIP() << "an emulator runs the command";
  std::string zeros = "0";
  std::string names;
  for (int i = 1; i < 400000; ++i) zeros += ",0";
  for (int i = 0; i < 100000; ++i) names += (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\":\"\"";
  Make("shape.safetensors",
       Safetensors("{" + Entry("x", "F32", "[" + zeros + "]", 0, 0) + "}", ""));
  Make("names.safetensors", Safetensors("{\"__metadata__\":{" + names + "}}", ""));
  Make("shape.npy",
       Npy("{'descr': '<f4', 'fortran_order': False, 'shape': (" + zeros + ")}", "", 2));
  for (const std::string file : {"shape.safetensors", "names.safetensors", "shape.npy"}) {
    int without_memory = 0;
    for (rlim_t megabytes = 8; megabytes < 60; megabytes += 4) {
      const auto limit = [megabytes] {
        const rlimit memory = {megabytes << 20, megabytes << 20};
        setrlimit(RLIMIT_AS, &memory);
      };
      SCOPED_TRACE(file + " in " + std::to_string(megabytes) + " MiB");
      if (RunCommand({"--version"}, {}, limit).status != 0) continue;  // too little to start
      const Outcome outcome =
          RunCommand({"apply", "--input", File(file), "--output", File("y.npy")}, {}, limit);
      ExpectUserError(outcome, "");
      without_memory += outcome.err == "rmsnorm: out of memory\n";
    }
    EXPECT_GT(without_memory, 0) << file;
  }
}

#endif

TEST_F(FileFormats, MessagesEscapeNamesAndAreShort) {
  const std::string hidden = "\xe2\x80\xae\xc2\x9b\x7f";  // U+202E, U+009B, U+007F
  const std::string x = Entry("x" + hidden + "\\u0000", "X" + hidden, "[0]", 0, 0);
  Make("bad.safetensors", Safetensors("{" + x + "}", ""));
  ExpectRefused("apply --input bad.safetensors --output y.npy",
                "tensor 'x\\u202e\\u009b\\u007f\\u0000': dtype 'X\\u202e\\u009b\\u007f'");

  const std::string name(10000000, 'n');
  for (const std::string& header :
       {"{" + Entry(name, "X", "[0]", 0, 0) + "}", "{" + Entry("x", name, "[0]", 0, 0) + "}",
        "{\"" + name + "\":1,\"" + name + "\":1}", "{\"" + name}) {
    Make("bad.safetensors", Safetensors(header, ""));
    const Outcome outcome =
        RunCommand({"apply", "--input", File("bad.safetensors"), "--output", File("y.npy")});
    ExpectUserError(outcome, "bad.safetensors: ");
    EXPECT_LT(outcome.err.size(), 1100u);
  }
}

TEST_F(FileFormats, RefusesMalformedSafetensors) {
  const std::string x = Entry("x", "F32", "[2, 3]", 0, 24);
  const auto with = [](const std::string& header) { return Safetensors(header, kData); };
  const auto tensor = [](const std::string& dtype, const std::string& shape, size_t begin = 0,
                         size_t end = 24) {
    return Safetensors("{" + Entry("x", dtype, shape, begin, end) + "}", kData);
  };
  const auto offsets = [](const std::string& text) {
    return Safetensors("{\"x\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":" + text + "}}",
                       kData);
  };
  const std::string deep_arrays = std::string(1000000, '[');
  std::string deep_objects;
  for (int i = 0; i < 100000; ++i) deep_objects += "{\"a\":";
  const std::pair<std::string, Words> cases[] = {
      {"too short", {"", "1234567"}},
      {"beyond the file's end",
       {LittleEndian(1, 8), LittleEndian(UINT64_MAX, 8) + "{}",
        LittleEndian(uint64_t{1} << 63, 8) + "{}", with("{" + x + "}").substr(0, 30)}},
      {"above the limit", {Safetensors(std::string().append(100000001, ' '), "")}},
      {"not a JSON object",
       {with(""), with("[]"), with("\xef\xbb\xbf{" + x + "}"), with("null"), with(" {" + x + "}"),
        with("{" + x + "}" + std::string(3, '\0'))}},
      {"not valid JSON",
       {with("{"), with("{" + x + "}}"), with("{\"\xff\": 1}"), with("{/**/" + x + "}")}},
      {"nested too deeply",
       {with("{\"x\": " + deep_arrays), with(deep_objects),
        with("{\"__metadata__\": {\"a\": [[[]]]}," + x + "}")}},
      {"'x' twice", {with("{" + x + "," + x + "}")}},
      {"'dtype' twice",
       {with("{\"x\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}"
             "}")}},
      {"end at byte 0 of 24", {with("{}")}},
      {"holds no tensor", {Safetensors("{}", ""), Safetensors("{\"__metadata__\": {}}", "")}},
      {"__metadata__",
       {with("{\"__metadata__\": {\"a\": 1}," + x + "}"),
        with("{\"__metadata__\": \"a\"," + x + "}")}},
      {"'x': not described by an object", {with("{\"x\": 1}")}},
      {"'dtype' is not a string", {with("{\"x\": {}}"), with("{\"x\": {\"dtype\": 1}}")}},
      {"'data_offsets' is not a list of sizes",
       {with("{\"x\": {\"dtype\": \"F32\"}}"), offsets("[-1, 23]"), offsets("[0, 24.5]")}},
      {"'shape' is not a list of sizes",
       {with("{\"x\":{\"dtype\":\"F32\",\"data_offsets\":[0,24]}}"), tensor("F32", "6"),
        tensor("F32", "[2, -3]"), tensor("F32", "[2, 3.0]"), tensor("F32", "[2, \"3\"]"),
        tensor("F32", "[99999999999999999999, 3]")}},
      {"overflows",
       {tensor("F32", "[4294967296, 4294967296]"), tensor("F32", "[18446744073709551615]")}},
      {"needs 32 bytes, its offsets hold 24", {tensor("F32", "[2, 4]")}},
      {"needs 12 bytes, its offsets hold 24", {tensor("F16", "[2, 3]")}},
      {"needs 4 bytes, its offsets hold 24", {tensor("F32", "[]")}},
      {"lie outside the 24 bytes",
       {tensor("F32", "[2, 3]", 0, 25), tensor("F32", "[2, 3]", 4, 28),
        tensor("F32", "[2, 3]", 24, 0), tensor("F32", "[2, 3]", SIZE_MAX - 23, SIZE_MAX)}},
      {"end at byte 20 of 24", {tensor("F32", "[5]", 0, 20)}},
      {"starts at byte 4 of the data, the tensor before it ends at 0",
       {tensor("F32", "[5]", 4, 24)}},
      {"starts at byte 8 of the data, the tensor before it ends at 16",
       {with("{" + Entry("x", "F32", "[4]", 0, 16) + "," + Entry("y", "F32", "[4]", 8, 24) + "}")}},
      {"starts at byte 16 of the data, the tensor before it ends at 8",
       {with("{" + Entry("x", "F32", "[2]", 0, 8) + "," + Entry("y", "F32", "[2]", 16, 24) + "}")}},
      {"not a pair", {offsets("[0]"), offsets("[0, 24, 48]")}},
      {"number that is out of range", {offsets("[0, 1e400]")}},
      {"'F64' is not supported", {tensor("F64", "[3]")}},
      {"'F8_E4M3' is not supported", {tensor("F8_E4M3", "[24]")}},
      {"'f32' is not supported", {tensor("f32", "[2, 3]")}},
      {"'a\\nb' is not supported", {tensor("a\\nb", "[2, 3]")}},
      {"is the file truncated?", {with("{" + x + "}").substr(0, with("{" + x + "}").size() - 1)}},
      {"end at byte 24 of 25", {with("{" + x + "}") + "x"}}};
  ASSERT_EQ(Applied(Make("good.safetensors", with("{" + x + "}"))).shape, (Sizes{2, 3}));
  for (const auto& [problem, files] : cases) {
    for (const std::string& bytes : files) {
      SCOPED_TRACE(bytes.substr(0, 200));
      Make("bad.safetensors", bytes);
      ExpectRefused("apply --input bad.safetensors --output y.npy", problem);
    }
  }
}

TEST_F(FileFormats, NamesTheTensorsToChooseFrom) {
  std::string header;
  for (const std::string name : {"a", "b", "c\\n", "d", "e"}) {
    header += (header.empty() ? "{" : ",") + Entry(name, "F32", "[0, 2]", 0, 0);
  }
  Make("five.safetensors", Safetensors(header + "}", ""));
  const std::string apply = "apply --output y.npy --input five.safetensors";
  ExpectRefused(apply,
                "five.safetensors: the file holds 5 tensors, name one as FILE:TENSOR: "
                "'a', 'b', 'c\\n' and 2 more");
  ExpectRefused(apply + ":z", "no tensor 'z'; the file holds 'a', 'b', 'c\\n' and 2 more");
  ExpectRefused(apply + ":__metadata__", "no tensor '__metadata__'");
  ExpectRefused(apply + ":", "no tensor name after the colon");
}

}  // namespace
}  // namespace rmsnorm::test
