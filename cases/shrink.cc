// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <vector>

#include "run.h"

namespace rmsnorm::cases {
namespace {

// Simpler texts of a field, the simplest first.
std::vector<std::string> Simpler(const Field& field, const Case& c) {
  const std::string text = field.write(c);
  std::vector<std::string> simpler = {"none", field.write(Case(c.backward)), "1", "f32"};
  std::vector<std::string> sizes = Split(text, 'x');
  const bool is_number = !text.empty() && std::all_of(text.begin(), text.end(), [](char digit) {
    return (digit >= '0' && digit <= '9') || digit == 'x';
  });
  for (size_t i = 0; is_number && i < sizes.size(); ++i) {
    const auto with = [&](const std::string& size) {
      std::string all;
      for (size_t k = 0; k < sizes.size(); ++k) {
        const std::string& own = k == i ? size : sizes[k];
        if (!own.empty()) all += (all.empty() ? "" : "x") + own;
      }
      return all;
    };
    const unsigned long long number = std::stoull(sizes[i]);
    simpler.push_back(with(""));
    if (number > 1) simpler.push_back(with(std::to_string(number / 2)));
    if (number > 0) simpler.push_back(with(std::to_string(number - 1)));
  }
  const auto stop = std::find(simpler.begin(), simpler.end(), text);
  simpler.erase(stop, simpler.end());
  return simpler;
}

}  // namespace

Calls Shrink(Runner& runner, const Calls& failing, const std::string& target,
             const FindFault& find_fault) {
  const auto kind = [&](const Calls& calls) {
    const std::string fault = find_fault(runner, calls, target);
    return fault.empty() ? 0 : fault.find("refused") == std::string::npos ? 1 : 2;
  };
  const int kind_of_fault = kind(failing);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  const auto is_late = [until] { return std::chrono::steady_clock::now() > until; };
  Calls best = failing;
  const auto replace_best = [&](const Calls& simpler) {
    const bool fails = !is_late() && HasMeaning(simpler) && kind(simpler) == kind_of_fault;
    if (fails) best = simpler;
    return fails;
  };
  for (bool again = true; again && !is_late();) {
    again = false;
    for (size_t i = best.size(); best.size() > 1 && i-- > 0;) {
      Calls simpler = best;
      simpler.erase(simpler.begin() + static_cast<ptrdiff_t>(i));
      again |= replace_best(simpler);
    }
    for (size_t i = 0; i < best.size(); ++i) {
      for (const Field& field : Fields()) {
        for (const std::string& text : Simpler(field, best[i])) {
          Calls simpler = best;
          if (!field.read(simpler[i], text) || !replace_best(simpler)) continue;
          again = true;
          break;
        }
      }
    }
  }
  return best;
}

}  // namespace rmsnorm::cases
