// The table of keys against the structs, the ranges, and the documentation.
#include "config/keys.h"

#include "base/file.h"
#include "parsing.h"

#include <cmath>
#include <cstdlib>
#include <set>

namespace mythos {
namespace {

TEST(Keys, AreUniqueAndDescribed) {
  std::set<std::string> seen;
  for (const auto& key : config_keys()) {
    EXPECT_TRUE(seen.insert(key.full_name()).second) << key.full_name();
    EXPECT_FALSE(key.meaning.empty()) << key.full_name();
    EXPECT_TRUE(key.meaning.ends_with('.') || key.meaning.ends_with(":")) << key.full_name();
    EXPECT_EQ(find_key(key.section, key.name), &key);
    for (const auto& other : key.also)
      EXPECT_EQ(find_key(key.section, other), nullptr) << key.full_name() << " " << other;
  }
  EXPECT_EQ(config_sections(),
            (std::vector<std::string>{"model", "tokenizer", "data", "train", "checkpoint", "run", "log", "cost"}));
}

// Every place is a field of its own: writing one key changes just that one.
TEST(Keys, PlacesDoNotOverlap) {
  const RunConfig before;
  for (const auto& key : config_keys()) {
    RunConfig after;
    Value value;
    value.data = int64_t{7};
    for (const char* text : {"7", "true", "\"x\"", "[\"x\"]", "[0.25]", "[0.25, 0.5]", "0.25", "false"}) {
      if (auto candidate = parse_toml_value(text); store(key, *candidate, after).empty()) {
        if (written(key, after) != written(key, before)) break;
      }
    }
    if (!key.choices.empty()) {
      value.data = std::string(key.choices.back());
      ASSERT_EQ(store(key, value, after), "") << key.full_name();
      if (written(key, after) == written(key, before)) {
        value.data = std::string(key.choices.front());
        ASSERT_EQ(store(key, value, after), "");
      }
    }
    if (key.low == key.high && key.name == "dropout") continue;  // takes its default alone
    const auto changed = diff(before, after);
    ASSERT_EQ(changed.size(), 1U) << key.full_name();
    EXPECT_EQ(changed[0].key, key.full_name());
  }
}

TEST(Keys, DefaultsLieInTheirRanges) {
  const RunConfig defaults;
  for (const auto& key : config_keys()) {
    const std::string text = written(key, defaults);
    if (text.empty()) continue;
    RunConfig copy;
    const auto value = parse_toml_value(text);
    ASSERT_TRUE(value) << key.full_name() << " = " << text;
    EXPECT_EQ(store(key, *value, copy), "") << key.full_name();
    EXPECT_EQ(copy, defaults) << key.full_name();
  }
}

TEST(Keys, RangesAreKept) {
  for (const auto& key : config_keys()) {
    if (!std::holds_alternative<int64_t& (*)(RunConfig&)>(key.place)) continue;
    RunConfig config;
    const auto says = [&](double n) {
      Value value;
      value.data = static_cast<int64_t>(n);
      return store(key, value, config);
    };
    EXPECT_EQ(says(key.low), "") << key.full_name();
    EXPECT_NE(says(key.low - 1), "") << key.full_name();
    if (std::isinf(key.high)) continue;
    EXPECT_EQ(says(key.high), "") << key.full_name();
    EXPECT_NE(says(key.high + 1), "") << key.full_name();
  }
}

// The ranges of [model] are those of problems(ModelConfig): one step outside, the model says so itself.
TEST(Keys, ModelRangesAreTheModels) {
  for (const auto& key : config_keys()) {
    const auto* place = std::get_if<int64_t& (*)(RunConfig&)>(&key.place);
    if (place == nullptr || key.section != "model" || key.name == "max_output_tokens") continue;
    for (const auto type : {AttentionType::mla, AttentionType::gqa}) {
      if (type == AttentionType::gqa && key.meaning.find("mla only") != std::string_view::npos) continue;
      RunConfig config;
      config.model.attn_type = type;
      for (const double edge : {key.low - 1, key.high + 1}) {
        (*place)(config) = static_cast<int64_t>(edge);
        const auto found = problems(config.model);
        ASSERT_FALSE(found.empty()) << key.full_name() << " " << edge;
        EXPECT_NE(found[0].find(key.full_name() + " is"), std::string::npos) << found[0];
      }
    }
  }
}

// docs/config.md holds exactly the tables of the program. MYTHOS_UPDATE_DOCS=1 writes them anew.
TEST(Keys, DocumentationListsThemAll) {
  const std::string path = std::string(MYTHOS_TEST_DIR) + "/../docs/config.md";
  const std::string begin = "<!-- keys: written by the program, do not edit -->\n";
  const std::string end = "<!-- keys: end -->";
  const std::string text = read_file(path);
  const size_t from = text.find(begin);
  const size_t to = text.find(end);
  ASSERT_NE(from, std::string::npos);
  ASSERT_NE(to, std::string::npos);
  const size_t start = from + begin.size();
  if (std::getenv("MYTHOS_UPDATE_DOCS") != nullptr) {
    write_file_atomically(path, text.substr(0, start) + keys_markdown() + text.substr(to));
    return;
  }
  EXPECT_EQ(text.substr(start, to - start), keys_markdown())
      << "docs/config.md is stale: run this test with MYTHOS_UPDATE_DOCS=1";
}

}  // namespace
}  // namespace mythos
