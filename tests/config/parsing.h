// Short ways to parse a configuration in a test and to see what it complains about.
#pragma once

#include "base/error.h"
#include "config/run_config.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace mythos {

inline RunConfig parsed(std::string_view text, const std::vector<std::string>& overrides = {}) {
  return parse_config(text, "test.toml", "test", overrides);
}

/// The error's whole text; fails the test if there is none or if it is not one of configuration.
inline std::string complaint(std::string_view text, const std::vector<std::string>& overrides = {}) {
  try {
    parsed(text, overrides);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::usage);
    return e.line();
  }
  ADD_FAILURE() << "no complaint about: " << text.substr(0, 200);
  return "";
}

}  // namespace mythos

/// The text holds the part; shows both if not.
#define EXPECT_SAYS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text) << "\nlacks: " << (part)
#define EXPECT_NOT_SAYS(text, part) EXPECT_EQ((text).find(part), std::string::npos) << (text) << "\nhas: " << (part)
