// SPDX-License-Identifier: Apache-2.0
// exhaustive_cases LIST [N]: compares every Nth case of a list on every target with the reference,
// and the reference with the oracle.
#include <cstdint>
#include <iostream>

#include "cases/list.h"
#include "cases/number_text.h"
#include "cases/targets.h"
#include "check.h"
#include "oracle.h"

int main(int argc, char** argv) {
  using namespace rmsnorm;
  uint32_t every = 1;
  if (argc < 2 || argc > 3 || (argc == 3 && !cases::ReadNumber(argv[2], every)) || every == 0) {
    std::cerr << "usage: exhaustive_cases LIST [N]\n";
    return 2;
  }
  const cases::List list(cases::ReadText(argv[1]));
  tools::Checker checker((list.size() + every - 1) / every, cases::SupportedTargets(), std::cout);
  cases::Runner runner;
  size_t index = 0;
  size_t faults = 0;
  test::Worst worst;
  list.ForEach([&](const cases::Calls& calls) {
    if (index++ % every != 0) return;
    checker.Check(calls, runner);
    runner.Set(calls);  // a failure sets others
    const std::string fault = test::FaultOf(calls[0], runner.problem(), worst);
    if (fault.empty()) return;
    ++faults;
    std::cout << "The reference is wrong: " << fault << "\n  " << cases::Text(calls) << std::endl;
  });
  std::cout << faults << " cases outside the oracle's ranges; ";
  return checker.Finish() != 0 || faults != 0 ? 1 : 0;
}
