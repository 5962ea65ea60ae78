// SPDX-License-Identifier: Apache-2.0
// An answer in words.
#ifndef RMSNORM_TOOLS_IDENTIFY_TEXT_H_
#define RMSNORM_TOOLS_IDENTIFY_TEXT_H_

#include <string>
#include <vector>

#include "identify.h"

namespace rmsnorm::identify {

// What the implementation computes, in one sentence.
std::string Sentence(const Answer& answer);

// The systems that compute so, those with the same eps first.
std::vector<std::string> SystemsLike(const Answer& answer);

// The whole answer, for people.
std::string Text(const Answer& answer);

}  // namespace rmsnorm::identify

#endif  // RMSNORM_TOOLS_IDENTIFY_TEXT_H_
