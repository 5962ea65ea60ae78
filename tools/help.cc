// SPDX-License-Identifier: Apache-2.0
// rmsnorm help: what --help prints, for whoever asks so.
#include <iostream>
#include <memory>

#include "command.h"
#include "words.h"

namespace rmsnorm::tools {

void AddHelp(CLI::App& app, int& status) {
  CLI::App* const command =
      app.add_subcommand("help", "Print the commands, or a command's options");
  std::vector<std::string> names;
  for (const CLI::App* const named : CommandsOf(app)) names.push_back(named->get_name());
  const auto name = std::make_shared<std::string>();
  command->add_option("COMMAND", *name, "The command to describe")
      ->check(OneOf(names))
      ->type_name("");
  command->callback([&app, &status, name] {
    const CLI::App& described = name->empty() ? app : *app.get_subcommand(*name);
    const std::string path = name->empty() ? app.get_name() : app.get_name() + " " + *name;
    std::cout << app.get_formatter()->make_help(&described, path, CLI::AppFormatMode::Normal);
    status = kSuccess;
  });
}

}  // namespace rmsnorm::tools
