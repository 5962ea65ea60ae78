// SPDX-License-Identifier: Apache-2.0
// The functions that the Python package calls by ctypes (python/rmsnorm/_identify.py).
#include <algorithm>
#include <exception>
#include <string>

#include "options_text.h"
#include "probe.h"
#include "text.h"

#if defined(_WIN32)
#define EXPORTED extern "C" __declspec(dllexport)
#else
#define EXPORTED extern "C" __attribute__((visibility("default")))
#endif

using namespace rmsnorm::identify;

namespace {

class Lines {
 public:
  void Add(const std::string& key, const std::string& value) { text_ += key + "\t" + value + "\n"; }
  void AddText(const std::string& text) { text_ += "text\n" + text; }
  std::string Take() { return std::move(text_); }

 private:
  std::string text_;
};

std::string LinesOf(const Answer& answer) {
  Lines lines;
  const Hypothesis& best = answer.best;
  lines.Add("fit", answer.fit == Fit::kExact   ? "exact"
                   : answer.fit == Fit::kClose ? "close"
                                               : "none");
  lines.Add("sentence", Sentence(answer));
  const bool is_ours = answer.fit != Fit::kNone && answer.mistake.empty();
  lines.Add("options", is_ours ? OptionsText(best.options) : "");
  if (answer.fit != Fit::kNone && best.kind == StepKind::kVariant) lines.Add("variant", best.step);
  if (!answer.mistake.empty()) lines.Add("mistake", answer.mistake);
  lines.Add("equal", std::to_string(best.distance.Equal()));
  lines.Add("worst", std::to_string(best.distance.worst));
  lines.Add("elements", std::to_string(best.distance.elements));
  lines.Add("rows", std::to_string(answer.rows));
  for (const Hypothesis& other : answer.others) {
    std::string words = OptionsText(other.options);
    if (!other.step.empty()) words += "; " + other.step;
    lines.Add("other", std::to_string(other.distance.Equal()) + "\t" +
                           std::to_string(other.distance.worst) + "\t" + words);
  }
  for (const Ambiguity& ambiguity : answer.ambiguities) {
    lines.Add("ambiguous",
              ambiguity.name + "\t" + Joined(ambiguity.values, " or ") + "\t" + ambiguity.cure);
  }
  for (const std::string& system : SystemsLike(answer)) lines.Add("system", system);
  for (const std::string& note : answer.notes) lines.Add("special", note);
  lines.AddText(Text(answer));
  return lines.Take();
}

}  // namespace

EXPORTED size_t rmsnorm_probe_rows(void) { return ProbeRows(); }

EXPORTED size_t rmsnorm_probe_ordinary_rows(void) { return OrdinaryProbeRows(); }

EXPORTED void rmsnorm_probe(size_t d, int32_t dtype, float* x, float* weight, float* residual,
                            float* gate) {
  const Probe probe = MakeProbe(d, dtype);
  const auto copy = [](const std::vector<float>& from, float* to) {
    if (to != nullptr) std::copy(from.begin(), from.end(), to);
  };
  copy(probe.x, x);
  copy(probe.weight, weight);
  copy(probe.residual, residual);
  copy(probe.gate, gate);
}

// Returns lines "key<TAB>value", of which the last is "text" with the answer for people behind it;
// or one line with the key "error". The text is valid until the thread's next call.
EXPORTED const char* rmsnorm_identify(const rmsnorm_operands* operands, const float* eps,
                                      size_t eps_count) {
  static thread_local std::string text;
  try {
    text = LinesOf(Identify(*operands, {eps, eps + eps_count}));
  } catch (const std::exception& error) {
    text = std::string("error\t") + error.what() + "\n";
  }
  return text.c_str();
}
