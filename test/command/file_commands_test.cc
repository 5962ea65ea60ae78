// SPDX-License-Identifier: Apache-2.0
// `rmsnorm apply` and `rmsnorm backward` from files to files: options, shapes, outputs and errors.
// file_formats_test.cc covers the formats; output_file_test.cc covers full disks and permissions.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "file_command.h"

namespace rmsnorm::test {
namespace {

using FileCommands = FileCommandTest;

// A norm and all gradients of a few rows.
const std::string kApply = "apply --input bf16[3,100] --dtype f32 --output y.npy --weight f32[100]";
const std::string kBackward =
    "backward --input bf16[3,100] --grad f32[3,100] --weight f32[100] --grad-input g.safetensors "
    "--grad-weight g.safetensors --grad-bias g.safetensors";

// ------------------------------------------------------------------------------------- results

TEST_F(FileCommands, EachOptionReachesTheLibrary) {
  struct Options {
    std::string line;
    Words different;  // each of them changes a result
    Words same;       // defaults, which change nothing
  };
  for (const Options& options :
       {Options{
            kApply,
            {"", " --eps 0.5", " --eps 0.5 --eps-placement outside",
             " --eps 2 --eps-placement floor", " --rounding before_weight", " --rounding inverse",
             " --weight-offset 1", " --divisor 17.5", " --bias f32[100]", " --residual f32[3,100]",
             " --residual bf16[3,100]", " --residual bf16[3,100] --residual-rounding unrounded",
             " --post-norm-weight f32[100]", " --factor 0.25", " --gate f32[3,100]",
             " --gate bf16[3,100] --activation sigmoid",
             " --gate f32[3,100] --gate-placement before",
             " --gate f32[3,100] --gate-rounding rounded"},
            {" --rounding after_weight", " --factor 1"}},
        Options{kApply + " --gate f32[3,100]",
                {""},
                {" --activation silu", " --gate-placement after", " --gate-rounding unrounded"}},
        Options{kApply + " --residual bf16[3,100]", {""}, {" --residual-rounding rounded"}},
        Options{kBackward,
                {"", " --eps 0.5", " --eps 0.5 --eps-placement outside",
                 " --eps 2 --eps-placement floor", " --weight-offset 1", " --divisor 17.5",
                 " --rstd f32[3]"},
                {" --grad-weight-dtype f32", " --grad-bias-dtype f32"}}}) {
    std::set<std::string> results;
    for (const std::string& more : options.different) {
      results.insert(ExpectRight(options.line + more));
      EXPECT_EQ(results.size(), static_cast<size_t>(&more - options.different.data()) + 1)
          << more << " changes nothing";
    }
    const std::string plain = ExpectRight(options.line);
    for (const Words& words :
         {options.same, Words{" --eps 1e-5", " --eps-placement inside", " --weight-offset 0",
                              " --divisor 100", " --threads 0", " --threads 1", " --threads 7"}}) {
      for (const std::string& more : words)
        EXPECT_EQ(ExpectRight(options.line + more), plain) << more;
    }
  }
}

TEST_F(FileCommands, EpsIsRoundedOnce) {
  Make("x.npy", NpyOf({"F32", {1}, Bytes<float>({0x1p-30f})}));
  const auto apply = [this](const std::string& eps) {
    ExpectSuccess(Run({"apply", "--input", "x.npy", "--output", "y.npy", "--eps-placement",
                       "outside", "--eps", eps}));
    return ReadFile(File("y.npy"));
  };
  // Just above the middle between two floats. Through double, it would become the middle and round
  // down to 1.
  const std::string above = apply("1.00000011920928955078125");
  EXPECT_NE(apply("1"), above);
  EXPECT_EQ(apply("1.00000005960464477540"), above);
}

TEST_F(FileCommands, EachTypeAndShapeHasTheResultsOfTheLibrary) {
  for (const char* line : {
           "apply --input f32[2,12] --output y.npy --dtype f32",
           "apply --input f32[2,12] --output y.npy --dtype f16",
           "apply --input f32[2,12] --output y.safetensors --dtype f16",
           "apply --input f32[2,12] --output y.safetensors --dtype bf16",
           "apply --input f16[2,12] --output y.safetensors",
           "apply --input bf16[2,12] --output y.safetensors",
           "apply --input bf16[3,100] --output y.safetensors --bias f32[100]",
           "apply --input bf16[3,100] --output y.safetensors --bias f16[100]",
           "apply --input bf16[3,100] --output y.safetensors --bias bf16[100] --weight f16[100]",
           "apply --input f32[24] --output y.npy",
           "apply --input f32[24,1] --output y.npy",
           "apply --input f32[1,24] --output y.npy",
           "apply --input f32[2,3,4] --output y.npy",
           "apply --input f32[1,2,1,3,1,2,2] --output y.npy",
           "apply --input f16[0,512] --output y.npy",
           "apply --input bf16[3,0,8] --output y.safetensors",
           "apply --input f32[0,1099511627776,1099511627776,3] --output y.npy",
           "apply --input bf16[2,7168] --weight bf16[7168] --output y.safetensors",
           // Without rows, a weight broadcasts as usual.
           "apply --input f32[2,0,3] --output y.npy --weight f32[3] --bias f32[2,0,3]",
           "apply --input f32[2,0,3] --output y.npy --weight f32[0,3] --bias f32[1,0,3]",
           "apply --input f32[2,0,3] --output y.npy --weight f32[1,3] --bias f32[2,1,3]",
           // A residual of x's type, of other types, and its sum.
           "apply --input bf16[3,100] --residual bf16[3,100] --output y.safetensors",
           "apply --input bf16[3,100] --residual bf16[3,100] --output y.safetensors --dtype f32 "
           "--residual-output sum.safetensors:the-sum",
           "apply --input bf16[3,100] --residual f32[3,100] --output y.npy --dtype f32 "
           "--residual-output sum.npy --residual-rounding unrounded --weight f32[100]",
           "apply --input bf16[3,100] --residual f16[3,100] --output y.safetensors "
           "--residual-output sum.npy",
           "apply --input f32[3,100] --residual bf16[3,100] --residual-output sum.safetensors",
           "apply --input f32[0,3] --residual f32[0,3] --output y.npy --residual-output sum.npy",
           // Post-norms, whose weight also broadcasts, and gates.
           "apply --input bf16[3,100] --residual bf16[3,100] --output y.safetensors --weight "
           "f32[100] --residual-output y.safetensors --post-norm-weight bf16[3,100] --factor 0.22",
           "apply --input bf16[3,100] --residual f32[3,100] --residual-output sum.npy --no-norm "
           "--post-norm-weight f16[1,100] --rounding before_weight",
           "apply --input bf16[2,3,100] --output y.safetensors --weight f32[3,100] --gate "
           "f16[2,3,100] --post-norm-weight f32[100]",
           "apply --input f32[0,3] --output y.npy --gate f32[0,3] --post-norm-weight f32[3]",
           "apply --input f32[2,12] --residual f32[2,12] --output y.safetensors "
           "--residual-output y.safetensors --quantize int8-asymmetric",
           // Quantised outputs belong to the output, or to the output that x's type would give.
           "apply --input bf16[3,100] --output y.safetensors --quantize int8",
           "apply --input bf16[3,100] --output y.safetensors --quantize int8-asymmetric",
           "apply --input bf16[3,100] --output y.safetensors:y --dtype f32 --quantize int8",
           "apply --input bf16[2,3,100] --output y.safetensors --quantize int8",
           "apply --input f32[2,3,100] --output y.safetensors --quantize int8-asymmetric "
           "--gate f32[2,3,100] --residual f32[2,3,100] --residual-output r.npy",
           "apply --input f32[24] --output y.safetensors --quantize int8-asymmetric",
           "apply --input f32[0,24] --output y.safetensors --quantize int8-asymmetric",
           "apply --input f32[1,2,1,3,1,2,1,2] --output y.safetensors --quantize int8",
           // Gradients have the type and shape of their operand, or f32 and [d].
           "backward --input bf16[3,100] --grad f16[3,100] --weight bf16[100] --bias f32[1,100] "
           "--grad-input g.safetensors --grad-weight g.safetensors --grad-bias g.safetensors",
           "backward --input bf16[3,100] --grad f16[3,100] --bias bf16[100] "
           "--grad-input g.safetensors --grad-weight g.safetensors --grad-bias g.safetensors",
           "backward --input bf16[3,100] --grad bf16[3,100] --grad-input g.safetensors "
           "--grad-weight g.safetensors --grad-bias g.safetensors",
           "backward --input bf16[3,100] --grad f32[3,100] --weight f32[100] --grad-weight w.npy "
           "--grad-weight-dtype f16 --grad-bias b.safetensors --grad-bias-dtype bf16",
           "backward --input f32[24] --grad f32[24] --rstd f32[] --grad-input g.npy",
           "backward --input f32[24] --grad f32[24] --rstd f32[1] --grad-weight g.npy",
           "backward --input f32[24,1] --grad f32[24,1] --rstd f32[24] --grad-weight g.npy",
           "backward --input f32[2,3,4] --grad f32[2,3,4] --rstd f32[2,3] --grad-input g.npy",
           "backward --input f32[3,100] --grad f32[3,100] --rstd f32[3,1] --weight f32[100] "
           "--grad-input g.safetensors --grad-weight g.safetensors",
           "backward --input f32[1,2,1,3,1,2,2] --grad f32[1,2,1,3,1,2,2] --grad-input g.npy "
           "--rstd f32[1,2,1,3,1,2,1] --grad-weight w.npy --grad-bias b.npy",
           // Without rows, gradients are zeros.
           "backward --input f16[0,5] --grad f16[0,5] --grad-input g.npy --grad-weight w.npy "
           "--grad-bias b.npy",
           "backward --input f16[3,0,5] --grad f16[3,0,5] --weight f32[3,1,5] --bias f32[3,1,5] "
           "--grad-weight w.npy --grad-bias b.npy",
       }) {
    ExpectRight(line);
  }
}

// The longest such row has more bytes than a size_t can count; the shortest exceeds any memory.
TEST_F(FileCommands, WhereThereAreNoRowsTheyMayBeOfAnyLength) {
  for (const size_t d : {size_t{1} << 62, size_t{1} << 61, size_t{1} << 40, SIZE_MAX}) {
    const std::string length = std::to_string(d);
    const std::string x = "f32[2,0," + length + "]";
    ExpectRight("apply --input " + x + " --output y.npy --residual " + x +
                " --residual-output sum.safetensors");
    ExpectRight("apply --input st." + x + " --output y.npy");
    ExpectRefused("apply --input " + x + " --output y.npy --weight f32[1]",
                  "--weight: shape [1], but the rows of --input need [" + length + "]");
    const std::string backward = "backward --input " + x + " --grad " + x + " --rstd f32[2,0]";
    ExpectRight(backward + " --grad-input g.safetensors");
    if (d == size_t{1} << 40) continue;  // the system may have memory for this one
    const std::string problem =
        d == size_t{1} << 61 ? "out of memory" : "shape [" + length + "] overflows";
    ExpectRefused(backward + " --grad-input g.npy --grad-weight w.npy", problem);
    ExpectRefused(backward + " --grad-bias b.safetensors", problem);
  }
}

TEST_F(FileCommands, WeightsAndBiasesBroadcast) {
  const Words shapes = {"5",       "4,5",     "3,1,5", "2,1,1,5", "2,1,4,5", "2,3,4,5",
                        "1,1,1,5", "1,3,1,5", "1,5",   "1,4,5",   "3,4,5",   "2,3,1,5"};
  for (size_t i = 0; i < shapes.size(); ++i) {
    for (size_t j = 0; j < shapes.size(); ++j) {
      const std::string more = " --weight f32[" + shapes[i] + "] --bias f32[" + shapes[j] + "]";
      ExpectRight("apply --input f32[2,3,4,5] --output y.npy" + more);
      if (i > 6 || j > 6) continue;
      ExpectRight(
          "backward --input f32[2,3,4,5] --grad f32[2,3,4,5] --grad-input g.safetensors "
          "--grad-weight g.safetensors --grad-bias g.safetensors" +
          more);
    }
  }
}

// More dimensions than the library's views have: dimensions merge if each tensor has both or shares
// both.
TEST_F(FileCommands, ManyDimensionsMayBroadcast) {
  const std::string x = "apply --output y.npy --input f32[2,2,2,2,2,2,2,2,2,2] --weight f32[";
  const std::pair<std::string, std::string> cases[] = {
      {"2]", "[512,2] --weight f32[2]"},
      {"2,2,2,2,2]", "[32,16,2] --weight f32[16,2]"},
      {"2,2,1,1,1,1,2,2,2,2]", "[4,16,8,2] --weight f32[4,1,8,2]"},
      {"2,2,2,2,2,2,2,2,2,2]", "[512,2] --weight f32[512,2]"}};
  const auto data = [this] {
    const std::string file = ReadFile(File("y.npy"));
    return file.substr(file.size() - 4096);
  };
  for (const auto& [many, few] : cases) {
    ExpectSuccess(Run(Read(x + many).words));
    const std::string actual = data();
    ExpectSuccess(Run(Read("apply --output y.npy --input f32" + few).words));
    EXPECT_TRUE(actual == data()) << many;
  }
  ExpectRefused(x + "2,1,2,1,2,1,2,1,1,2]", "--input: 9 dimensions");
}

// x takes several chunks, divided along any of its dimensions. Chunks share rows of the weight or
// have separate ones. The last chunk is smaller.
TEST_F(FileCommands, LargeTensorsAreReadInChunks) {
  const std::pair<std::string, Words> cases[] = {
      {"3001,1000", {"1000", "3001,1000"}},
      {"2,3145728", {"3145728"}},  // a row longer than a chunk
      {"2,2100,1000", {"2,1,1000", "2100,1000", "2,2100,1000"}},
      {"3,4,300,1000", {"4,1,1000", "300,1000", "3,1,300,1000", "3,1,1,1000"}},
      {"5,700,1000", {"700,1000", "5,1,1000"}},
      {"2,2,1048576", {"2,1048576", "2,1,1048576"}}};
  for (const auto& [x, weights] : cases) {
    for (const std::string& w : weights) {
      ExpectRight("apply --output y.npy --input f32[" + x + "] --weight f32[" + w +
                  "] --bias f32[" + w + "]");
    }
    const std::string rows = x.substr(0, x.rfind(','));
    ExpectRight("backward --grad-input g.npy --input f32[" + x + "] --grad f32[" + x +
                "] --rstd f32[" + rows + "] --weight f32[" + weights.back() + "]");
  }
  ExpectRight(
      "apply --input f16[3001,1000] --output y.safetensors --dtype f32 --residual "
      "f32[3001,1000] --residual-output y.safetensors");
  ExpectRight(
      "apply --input bf16[3001,1000] --output y.safetensors --quantize int8-asymmetric --gate "
      "f32[3001,1000] --post-norm-weight f32[1000] --weight f32[1000]");
  // One call computes the sums over all rows.
  for (const std::string rstd : {"", " --rstd f32[3001]"}) {
    ExpectRight(
        "backward --input f32[3001,1000] --grad f32[3001,1000] --grad-input g.safetensors "
        "--grad-weight g.safetensors --grad-bias b.npy" +
        rstd);
  }
}

// ------------------------------------------------------------------------------------- outputs

TEST_F(FileCommands, OutputsMayShareAFile) {
  const std::string inputs = "backward --input f32[3,5] --grad bf16[3,5] --weight f16[5]";
  const std::string residual = "apply --input bf16[3,5] --residual f32[3,5]";
  for (const std::string& line :
       {inputs + " --grad-input dx.safetensors", inputs + " --grad-weight dw.npy",
        inputs + " --grad-bias db.npy",
        inputs + " --grad-input a.safetensors --grad-weight b.npy --grad-bias c.npy",
        // The larger elements come first, which aligns all tensors.
        inputs + " --grad-input a.safetensors:x --grad-weight a.safetensors:w --grad-bias "
                 "a.safetensors:b",
        inputs + " --grad-input a.safetensors --grad-weight b.npy --grad-bias a.safetensors",
        inputs + " --grad-input b.safetensors --grad-weight a.safetensors --grad-bias "
                 "a.safetensors",
        inputs + " --grad-input a.safetensors:a:b --grad-weight a.safetensors",
        residual + " --output a.safetensors --residual-output a.safetensors",
        residual + " --output a.safetensors:residual_output --residual-output a.safetensors:y"}) {
    ExpectRight(line);
  }
}

// All spellings of a path mean one file, before it exists and after.
TEST_F(FileCommands, APathMayHaveSeveralSpellings) {
  Words others = {"./a.safetensors", File("a.safetensors")};
  Words npy = {"a.npy", "./a.npy", File("a.npy")};
#ifndef _WIN32
  std::filesystem::create_symlink("a.safetensors", File("link.safetensors"));
  std::filesystem::create_symlink("a.npy", File("link.npy"));
  others.push_back("link.safetensors");
  npy.push_back("link.npy");
#else
  others.push_back("A.safetensors");
  npy.push_back("A.npy");
#endif
  const std::string absolute = File("a.safetensors");
  const Line line = Read("backward --input f32[3,5] --grad f32[3,5]");
  for (const std::string& other : others) {
    for (const bool is_new : {true, false}) {
      SCOPED_TRACE(other);
      if (is_new) std::filesystem::remove(absolute);
      Words words = line.words;
      words.insert(words.end(), {"--grad-input", "a.safetensors", "--grad-weight", other});
      ExpectSuccess(Run(words));
      EXPECT_EQ(ReadSafetensors(ReadFile(absolute)).size(), 2u);
    }
  }
  const std::string apply =
      "apply --input f32[2,3] --residual f32[2,3] --output a.npy --residual-output ";
  for (const std::string& other : npy) {
    ExpectRefused(apply + other, "a .npy file holds one tensor");
  }
}

TEST_F(FileCommands, OutputsMayReplaceInputs) {
  const Line apply = Read("apply --input f32[3,100] --residual f32[3,100] --weight f32[100]");
  const Line backward = Read("backward --input f32[3,100] --grad f32[3,100] --weight f32[100]");
  struct Case {
    const Line& line;
    Words flags;   // flags of the outputs
    Words inputs;  // inputs that the outputs replace
  };
  for (const Case& c :
       {Case{apply, {"--output", "--residual-output"}, {"input.npy", "residual.npy"}},
        Case{apply, {"--output", "--residual-output"}, {"weight.npy", "input.npy"}},
        Case{backward, {"--grad-input", "--grad-weight"}, {"grad.npy", "weight.npy"}}}) {
    Words apart = c.line.words;
    Words in_place = c.line.words;
    for (size_t i = 0; i < 2; ++i) {
      apart.insert(apart.end(), {c.flags[i], "y" + std::to_string(i) + ".npy"});
      in_place.insert(in_place.end(), {c.flags[i], c.inputs[i]});
    }
    const auto before = Contents();
    ExpectSuccess(Run(apart));
    ExpectSuccess(Run(in_place));
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_TRUE(ReadFile(File(c.inputs[i])) == ReadFile(File("y" + std::to_string(i) + ".npy")));
    }
    for (const auto& [name, bytes] : before) Make(name, bytes);
  }
}

// ------------------------------------------------------------------------------------ refusals

TEST_F(FileCommands, RefusesWhatDoesNotFit) {
  const std::string apply = "apply --input f32[2,3] --output y.npy ";
  const std::string backward =
      "backward --input bf16[3,100] --grad f32[3,100] --grad-input dx.npy --grad-weight dw.npy ";
  for (const std::string flag : {"--weight", "--bias", "--post-norm-weight"}) {
    for (const auto& [shape, problem] : std::vector<std::pair<std::string, std::string>>{
             {"2", "[2], but the rows of --input need [3]"},
             {"4", "[4], but the rows of --input need [3]"},
             {"1", "[1], but the rows of --input need [3]"},
             {"2,1", "[2, 1], but the rows of --input need [3]"},
             {"3,3", "[3, 3] does not broadcast to [2, 3], the shape of --input"},
             {"0,3", "[0, 3] does not broadcast to [2, 3], the shape of --input"},
             {"1,1,3", "[1, 1, 3] does not broadcast to [2, 3], the shape of --input"},
             {"1,2,3", "[1, 2, 3] does not broadcast to [2, 3], the shape of --input"},
             {"0", "[0], but the rows of --input need [3]"},
             {"", "[], but the rows of --input need [3]"}}) {
      ExpectRefused(apply + flag + " f32[" + shape + "]", flag + ": shape " + problem);
    }
    if (flag == "--post-norm-weight") continue;  // a post-norm weight has no gradient
    ExpectRefused(backward + "--grad-bias db.npy " + flag + " f32[99]",
                  flag + ": shape [99], but the rows of --input need [100]");
    ExpectRefused(
        backward + "--grad-bias db.npy " + flag + " f32[1,1,100]",
        flag + ": shape [1, 1, 100] does not broadcast to [3, 100], the shape of --input");
  }
  ExpectRefused("apply --input f32[2,0,3] --output y.npy --weight f32[2,3]",
                "--weight: shape [2, 3] does not broadcast to [2, 0, 3], the shape of --input");
  for (const std::string shape :
       {"[3, 2]", "[2, 2]", "[1, 3]", "[3]", "[6]", "[1, 2, 3]", "[]", "[0, 3]"}) {
    std::string word = shape;
    word.erase(std::remove(word.begin(), word.end(), ' '), word.end());
    ExpectRefused(apply + "--residual f32" + word,
                  "--residual: shape " + shape + ", but --input has [2, 3]");
    ExpectRefused(apply + "--gate f32" + word,
                  "--gate: shape " + shape + ", but --input has [2, 3]");
    ExpectRefused("backward --grad-input dx.npy --input f32[2,3] --grad f32" + word,
                  "--grad: shape " + shape + ", but --input has [2, 3]");
  }
  for (const std::string shape : {"2", "1,3", "", "3,100", "3,1,1"}) {
    ExpectRefused(backward + "--rstd f32[" + shape + "]",
                  ", but the rows of --input need [3] or [3, 1]");
  }
  ExpectRefused(backward + "--rstd f16[3]", "--rstd: f16; it must be f32");
  ExpectRefused("apply --input f32[] --output y.npy", "--input: a tensor without dimensions");
  ExpectRefused("apply --input f32[3,0] --output y.npy",
                "--input: shape [3, 0] has rows of no elements");
  ExpectRefused("apply --input st.f32[] --output y.npy", "--input: a tensor without dimensions");
  ExpectRefused("backward --input f32[3,0] --grad f32[3,0] --grad-input y.npy",
                "--input: shape [3, 0] has rows of no elements");
}

// An unreadable file for each flag.
TEST_F(FileCommands, RefusesFilesThatCannotBeRead) {
  Make("bad.npy", "");
  std::filesystem::create_directory(File("directory.npy"));
#ifndef _WIN32
  ASSERT_EQ(mkfifo(File("pipe.npy").c_str(), 0600), 0);
#endif
  const std::pair<std::string, std::string> files[] = {
      {"missing.npy", "missing.npy: No such file or directory"},
      {"missing/x.safetensors:a", "missing/x.safetensors: No such file"},
      {"directory.npy", "directory.npy: not a regular file"},
#ifndef _WIN32
      {"pipe.npy", "pipe.npy: not a regular file"},
#endif
      {"bad.npy", "bad.npy: not a .npy file"},
      {"x.txt", "x.txt: the name must end in .npy, .safetensors or .safetensors:TENSOR"},
      {"x.npy:a", "x.npy:a: the name must end in .npy"},
      {".npy", ".npy: the name must end in .npy"}};
  for (const std::string line :
       {"apply --output y.npy --input ", "apply --input f32[2,3] --output y.npy --weight ",
        "apply --input f32[2,3] --output y.npy --bias ",
        "apply --input f32[2,3] --output y.npy --residual ",
        "apply --input f32[2,3] --output y.npy --gate ",
        "apply --input f32[2,3] --output y.npy --post-norm-weight ",
        "backward --grad f32[2,3] --grad-input dx.npy --input ",
        "backward --input f32[2,3] --grad-input dx.npy --grad ",
        "backward --input f32[2,3] --grad f32[2,3] --grad-input dx.npy --rstd ",
        "backward --input f32[2,3] --grad f32[2,3] --grad-weight dw.npy --weight ",
        "backward --input f32[2,3] --grad f32[2,3] --grad-bias db.npy --bias "}) {
    for (const auto& [name, problem] : files) ExpectRefused(line + name, problem);
  }
  ExpectUserError(Run({"apply", "--output", "y.npy", "--input", ""}), "--input: '' names no file");
  ExpectUserError(Run({"apply", "--output", "y.npy", "--input", "two\nlines.npy"}),
                  "two\\nlines.npy");
#ifndef _WIN32
  if (geteuid() != 0) {  // root may read anything
    ASSERT_EQ(chmod(Make("secret.npy", "").c_str(), 0), 0);
    ExpectUserError(Run({"apply", "--output", "y.npy", "--input", "secret.npy"}),
                    "secret.npy: Permission denied");
  }
#endif
}

// An unwritable file for each flag. The other outputs stay as they were.
TEST_F(FileCommands, RefusesWhatItCannotWrite) {
  std::filesystem::create_directory(File("d.safetensors"));
  const std::pair<std::string, std::string> files[] = {
      {"missing/y.safetensors", "cannot write missing/y.safetensors: No such file or directory"},
      {"d.safetensors", "cannot write d.safetensors: not a regular file"},
      {"y.txt", "y.txt: the name must end in .npy"},
      {"z.safetensors:", "z.safetensors:: no tensor name after the colon"},
      {"z.safetensors:__metadata__", "a tensor cannot be called '__metadata__'"},
#ifndef _WIN32  // which makes every argument UTF-8
      {"z.safetensors:\xff", "is not UTF-8"},
#endif
      {"z.npy", "z.npy: .npy has no bf16"}};
  const std::string backward = "backward --input bf16[2,3] --grad bf16[2,3] --weight bf16[3] ";
  for (const std::string& line :
       {std::string("apply --input bf16[2,3] --output "),
        std::string("apply --input bf16[2,3] --residual bf16[2,3] --output y.safetensors "
                    "--residual-output "),
        backward + "--grad-weight dw.safetensors --grad-bias db.safetensors --grad-input ",
        backward + "--grad-input dx.safetensors --grad-bias db.safetensors --grad-weight ",
        backward + "--bias bf16[3] --grad-input dx.safetensors --grad-bias "}) {
    for (const auto& [name, problem] : files) ExpectRefused(line + name, problem);
  }
  ExpectRefused("apply --input f32[2,3] --output y.npy --dtype bf16", "y.npy: .npy has no bf16");
  ExpectRefused(backward + "--grad-input a.safetensors:g --grad-weight a.safetensors:g",
                "a.safetensors: two tensors cannot be called 'g'");
  ExpectRefused(backward + "--grad-weight a.safetensors --grad-input a.safetensors:grad_weight",
                "two tensors cannot be called 'grad_weight'");
}

TEST_F(FileCommands, RefusesWrongUse) {
  const std::string apply = "apply --input f32[2,3] --output y.npy ";
  const std::string gate = apply + "--gate f32[2,3] ";
  const std::string add = "apply --input f32[2,3] --residual f32[2,3] --residual-output sum.npy ";
  const std::string quantise = "apply --input f32[2,3] --quantize int8 --output y.safetensors";
  const std::string backward = "backward --input f32[2,3] --grad f32[2,3] --grad-input dx.npy ";
  for (const auto& [line, problem] : std::vector<std::pair<std::string, std::string>>{
           {"apply", "--input is required"},
           {"apply --output y.npy", "--input is required"},
           {"apply --input f32[2,3]", "--output or --residual-output is required"},
           {"backward --input f32[2,3] --grad f32[2,3]",
            "--grad-input, --grad-weight or --grad-bias is required"},
           {"backward --input f32[2,3] --grad-input dx.npy", "--grad is required"},
           {"backward --grad f32[2,3] --grad-input dx.npy", "--input is required"},
           {"apply --input", "--input"},
           {apply + "--weight", "--weight"},
           {apply + "--bias", "--bias"},
           {apply + "--input z.npy", "--input"},
           {apply + "z.npy", "z.npy"},
           {apply + "--frobnicate", "unknown option '--frobnicate'; see rmsnorm apply --help"},
           // A misspelt option comes before what follows from it.
           {"apply --inptu f32[2,3] --output y.npy", "'--inptu'; did you mean --input?"},
           {apply + "--residual-output sum.npy --residul f32[2,3]", "did you mean --residual?"},
           {apply + "--esp 1", "unknown option '--esp'; did you mean --eps?"},
           {apply + "--epsilon=1", "'--epsilon=1'; did you mean --eps?"},
           {apply + "-eps 1", "did you mean --eps?"},
           {apply + "eps 1", "unexpected argument 'eps'; did you mean --eps?"},
           {apply + "--Eps_Placement floor", "did you mean --eps-placement?"},
           {apply + "--eps-placement flor",
            "'flor' is not inside, outside or floor; did you mean floor?"},
           {apply + "--rounding before-weight", "did you mean before_weight?"},
           {apply + "--grad f32[2,3]", "'--grad' of rmsnorm apply; it belongs to rmsnorm backward"},
           {apply + "--residual-output sum.npy", "--residual-output requires --residual"},
           {apply + "--residual-rounding unrounded", "--residual-rounding requires --residual"},
           {apply + "--residual f32[2,3] --residual-rounding none",
            "--residual-rounding: 'none' is not "},
           {apply + "--rounding up", "--rounding: 'up' is not "},
           {apply + "--dtype f64", "--dtype: 'f64' is not "},
           {apply + "--eps 1e-5 --eps 1e-6", "--eps"},
           {apply + "--weight-offset 1", "--weight-offset is 1, but there is no --weight"},
           {apply + "--bias f32[3] --weight-offset 1", "there is no --weight"},
           {apply + "--weight f32[3] --weight-offset one",
            "--weight-offset: 'one' is not a finite 32-bit number"},
           {backward + "--weight-offset 1", "--weight-offset is 1, but there is no --weight"},
           {apply + "--factor 0", "--factor: 0 is zero"},
           {apply + "--factor nan", "--factor: 'nan' is not a finite 32-bit number"},
           {apply + "--activation sigmoid", "--activation requires --gate"},
           {apply + "--gate-placement before", "--gate-placement requires --gate"},
           {apply + "--gate-rounding rounded", "--gate-rounding requires --gate"},
           {gate + "--activation relu", "--activation: 'relu' is not "},
           {gate + "--gate-placement beside", "--gate-placement: 'beside' is not "},
           {gate + "--gate-rounding y", "--gate-rounding: 'y' is not "},
           {gate + "--gate-placement before --residual f32[2,3]",
            "--gate: before the norm it excludes a --residual"},
           {gate + "--gate-placement before --gate-rounding rounded",
            "--gate-rounding is rounded; it needs a --gate after the norm"},
           {add + "--gate f32[2,3]", "--gate requires --output"},
           {add + "--weight f32[3]", "--weight requires --output"},
           {add + "--bias f32[3]", "--bias requires --output"},
           {add + "--quantize int8", "--quantize requires --output"},
           {add + "--no-norm --output y.npy", "--output excludes --no-norm"},
           {apply + "--no-norm", "--output excludes --no-norm"},
           {"apply --input f32[2,3] --no-norm", "--no-norm requires --residual-output"},
           {apply + "--quantize int8", "y.npy: a .npy file holds one tensor"},
           {apply + "--quantize int4", "--quantize: 'int4' is not "},
           {quantise + ":scale", "two tensors cannot be called 'scale'"},
           {quantise + " --residual f32[2,3] --residual-output y.safetensors:q",
            "two tensors cannot be called 'q'"},
           {backward + "--factor 2", "--factor' of rmsnorm backward; it belongs to rmsnorm apply"},
           {backward + "--gate f32[2,3]", "--gate"},
           {backward + "--grad-weight-dtype f32", "--grad-weight-dtype requires --grad-weight"},
           {backward + "--grad-bias-dtype f32", "--grad-bias-dtype requires --grad-bias"},
           {backward + "--grad-weight w.npy --grad-weight-dtype f64",
            "--grad-weight-dtype: 'f64' is not "},
           {backward + "--bias f32[3]", "--bias requires --grad-bias"},
           {backward + "--rounding after_weight", "--rounding"},
           {backward + "--residual f32[2,3]", "--residual"}}) {
    ExpectRefused(line, problem);
  }
  // Each message names the flag and the value V.
  const std::pair<std::string, Words> wrong[] = {
      {": 'V' is not a finite 32-bit number",
       {"--eps abc", "--eps 1e-5x", "--eps nan", "--eps inf", "--eps 1e60", "--divisor nan"}},
      {": V is too small", {"--eps 1e-60"}},
      {": V is negative", {"--eps -1"}},
      {": V is not from 2^-126 to 2^126",
       {"--divisor 0", "--divisor -2", "--divisor 1e-40", "--divisor 1e38"}},
      {": 'V' is not ", {"--eps-placement beside"}},
      {": 'V' is not an integer from 0 to 2147483647",
       {"--threads -1", "--threads two", "--threads 99999999999", "--threads 0x10"}},
      {"", {"--eps"}}};
  for (const std::string& line : {apply, backward}) {
    for (const auto& [problem, all] : wrong) {
      for (const std::string& more : all) {
        const size_t space = std::min(more.find(' '), more.size());
        std::string message = more.substr(0, space) + problem;
        const size_t value = message.find('V');
        if (value != message.npos) message.replace(value, 1, more.substr(space + 1));
        ExpectRefused(line + more, message);
      }
    }
    ExpectRefused(line, "PDP11", {}, {{"RMSNORM_TARGET", "PDP11"}});
  }
  ExpectRefused("apply --input f32[0,3] --output y.npy", "PDP11", {},
                {{"RMSNORM_TARGET", "PDP11"}});
  const auto empty = [this](const std::string& flag) {
    return Run({"apply", "--input", "x.npy", "--output", "y.npy", flag, ""});
  };
  for (const char* const flag : {"--eps", "--dtype", "--threads", "--weight"}) {
    ExpectUserError(empty(flag), flag + std::string(": ''"));
  }
  ExpectUserError(Run({"apply", "--input", "x.npy", "--output", "y.npy", "--eps", " 1"}),
                  "--eps: ' 1'");
}

}  // namespace
}  // namespace rmsnorm::test
