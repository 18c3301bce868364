// A small trained run for the tests of the command line, made once by the program itself.
#pragma once

#include "../support/program.h"
#include "../support/tiny.h"
#include "base/json.h"

#include <memory>
#include <string>
#include <vector>

namespace mythos::testing {

class CliTest : public ::testing::Test {
 protected:
  static TinyRun& tiny() {
    static const auto made = [] {
      auto t = std::make_unique<TinyRun>();
      std::vector<std::string> o = {"train", t->config().string(), "--steps", "12"};
      for (const char* set : {"data.document_separator=true", "train.loops=2"}) o.insert(o.end(), {"--set", set});
      const Outcome outcome = run_program(o);
      if (outcome.code != 0) ADD_FAILURE() << outcome.err;
      return t;
    }();
    return *made;
  }
  static std::string run_dir() { return tiny().run().string(); }
  static std::string checkpoint() { return tiny().checkpoint(12).string(); }
  static std::string tokenizer() { return tiny().tokenizer().string(); }
  static std::string config() { return tiny().config().string(); }

  static Outcome run(std::vector<std::string> arguments, const Program::Options& options = {}) {
    return run_program(std::move(arguments), options);
  }
  /// Runs it, wants success, and gives back what it wrote as JSON.
  static Json json_of(std::vector<std::string> arguments) {
    const Outcome o = run(std::move(arguments));
    EXPECT_EQ(o.code, 0) << o.err;
    Json json = Json::parse(o.out, nullptr, false);
    EXPECT_FALSE(json.is_discarded()) << o.out;
    return json;
  }
  static Outcome with_input(std::vector<std::string> arguments, const std::string& input) {
    const TemporaryFolder folder;
    write_text(folder / "in", input);
    Program::Options options;
    options.input = folder / "in";
    return run(std::move(arguments), options);
  }

  TemporaryFolder folder_;
};

}  // namespace mythos::testing
