// A tiny model, a text and a tokenizer for tests that train: everything in a folder of its own, removed at the end.
#pragma once

#include "base/file.h"
#include "base/log.h"
#include "base/random.h"
#include "checkpoint/checkpoint.h"
#include "text/training.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace mythos::testing {

namespace fs = std::filesystem;

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (fs::temp_directory_path() / "mythos_test_XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder " + name);
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ec;
    fs::remove_all(path_, ec);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  [[nodiscard]] const fs::path& path() const { return path_; }
  [[nodiscard]] fs::path operator/(const std::string& name) const { return path_ / name; }

 private:
  fs::path path_;
};

inline void write_text(const fs::path& path, std::string_view text) { std::ofstream(path, std::ios::binary) << text; }

/// Documents of a few sentences, about `bytes` of them together, the same for a seed.
inline std::vector<std::string> generated_documents(size_t bytes, uint64_t seed = 1) {
  static const std::vector<std::string> nouns = {"river",  "stone", "king", "house", "city",  "bird", "book",
                                                 "island", "tree",  "ship", "road",  "child", "lamp", "caf\u00e9"};
  static const std::vector<std::string> verbs = {"finds", "carries", "builds", "remembers", "leaves", "opens"};
  static const std::vector<std::string> words = {"old", "small", "bright", "silent", "northern", "third"};
  Random random(derive_seed(seed, 0, "documents"));
  const auto one_of = [&](const auto& list) { return list[random.below(list.size())]; };
  std::vector<std::string> documents;
  for (size_t written = 0; written < bytes;) {
    std::string text;
    for (uint64_t sentences = 1 + random.below(3); sentences > 0; --sentences) {
      if (!text.empty()) text += ' ';
      text += "The " + one_of(words) + " " + one_of(nouns) + " " + one_of(verbs) + " the " + one_of(nouns) + ", " +
              std::to_string(random.below(1000)) + " times.";
    }
    written += text.size() + 2;
    documents.push_back(std::move(text));
  }
  return documents;
}

inline std::string joined(const std::vector<std::string>& documents) {
  std::string text;
  for (const auto& d : documents) text += d + "\n\n";
  return text;
}

inline Tokenizer small_tokenizer(const std::vector<std::string>& documents, int64_t vocab = 320) {
  TokenizerTraining options;
  options.vocab_size = vocab;
  return train_tokenizer(documents, options);
}

constexpr const char* tiny_model_toml = R"([model]
dim = 16
n_heads = 2
max_seq_len = 64
max_loop_iters = 3
prelude_layers = 1
coda_layers = 1
attn_type = "mla"
kv_lora_rank = 8
q_lora_rank = 8
qk_rope_head_dim = 4
qk_nope_head_dim = 4
v_head_dim = 4
n_experts = 4
n_shared_experts = 1
n_experts_per_tok = 2
expert_dim = 8
lora_rank = 2
)";

/// A folder with text.txt, tokenizer.json and config.toml: 24 steps of two micro-batches, loops drawn from three, a
/// run in FOLDER/run. It waits for its checkpoints: steps so short would leave some out.
class TinyRun {
 public:
  TinyRun() {
    const auto documents = generated_documents(120'000);
    write_text(folder_ / "text.txt", joined(documents));
    small_tokenizer({documents.begin(), documents.begin() + 300}).save(folder_ / "tokenizer.json");
    write_text(config(),
               std::string(tiny_model_toml) + "[tokenizer]\npath = \"" + tokenizer().string() +
                   "\"\n[data]\nsource = \"" + (folder_ / "text.txt").string() +
                   "\"\nvalidation_documents = 4\n"
                   "[train]\ndevice = \"cpu\"\nthreads = 1\nseq_len = 16\nmicro_batch = 2\n"
                   "global_batch_tokens = 64\nsteps = 24\nlr = 3e-3\nwarmup_steps = 4\nseed = 7\n"
                   "loops = {choices = [1, 2, 3]}\n"
                   "[checkpoint]\nevery = 6\nkeep_last = 3\nbackground = false\n[log]\nevery = 5\n[run]\ndir = \"" +
                   run().string() + "\"\n");
  }
  [[nodiscard]] const fs::path& folder() const { return folder_.path(); }
  [[nodiscard]] fs::path config() const { return folder_ / "config.toml"; }
  [[nodiscard]] fs::path tokenizer() const { return folder_ / "tokenizer.json"; }
  [[nodiscard]] fs::path text() const { return folder_ / "text.txt"; }
  [[nodiscard]] fs::path run() const { return folder_ / "run"; }
  [[nodiscard]] fs::path checkpoint(int64_t step) const { return checkpoint_of(run(), step); }
  static fs::path checkpoint_of(const fs::path& run, int64_t step) {
    return run / "checkpoints" / fmt::format("step_{:07}.safetensors", step);
  }

 private:
  TemporaryFolder folder_;
};

/// Everything in a folder but locks: path -> bytes and time of the last change.
inline std::map<std::string, std::pair<std::string, fs::file_time_type>> snapshot(const fs::path& folder) {
  std::map<std::string, std::pair<std::string, fs::file_time_type>> out;
  if (!fs::exists(folder)) return out;
  for (const auto& e : fs::recursive_directory_iterator(folder)) {
    if (e.path().filename() == ".lock") continue;
    const std::string name = e.path().lexically_relative(folder).string();
    if (e.is_regular_file()) out[name] = {read_file(e.path()), e.last_write_time()};
    if (e.is_directory()) out[name] = {"a folder", {}};
  }
  return out;
}

/// The lines of a file, without the last one if it does not end.
inline std::vector<std::string> lines_of(const fs::path& path) {
  std::vector<std::string> lines;
  if (!fs::exists(path)) return lines;
  const std::string text = read_file(path);
  for (size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    lines.push_back(text.substr(begin, end - begin));
  }
  return lines;
}

/// Lines of metrics.jsonl that are training steps.
inline std::vector<Json> steps_in(const fs::path& metrics) {
  std::vector<Json> steps;
  for (const auto& line : lines_of(metrics)) {
    Json json = Json::parse(line);
    if (json.contains("loss")) steps.push_back(std::move(json));
  }
  return steps;
}

inline void flip_bit(const fs::path& path, uint64_t byte, int bit = 3) {
  std::fstream f(path, std::ios::binary | std::ios::in | std::ios::out);
  f.seekg(static_cast<std::streamoff>(byte));
  const auto c = static_cast<char>(f.get() ^ (1 << bit));
  f.seekp(static_cast<std::streamoff>(byte));
  f.put(c);
}

/// Weights, buffers, both moments, step, tokens, data position and what the trainer remembers are equal bit for bit.
inline void expect_same_state(const Checkpoint& x, const Checkpoint& y) {
  ASSERT_EQ(x.file.entries().size(), y.file.entries().size());
  for (const auto& e : x.file.entries()) {
    const auto p = x.file.data(e);
    const auto q = y.file.data(y.file.at(e.name));
    ASSERT_EQ(p.size(), q.size()) << e.name;
    EXPECT_EQ(std::memcmp(p.data(), q.data(), p.size()), 0)
        << e.name << " differs between " << x.path() << " and " << y.path();
  }
  EXPECT_EQ(x.meta.step, y.meta.step);
  EXPECT_EQ(x.meta.tokens, y.meta.tokens);
  EXPECT_EQ(x.meta.data, y.meta.data);
  EXPECT_EQ(x.meta.seed, y.meta.seed);
  for (const char* key : {"optimizer_steps", "loss"}) EXPECT_EQ(x.meta.state[key], y.meta.state[key]) << key;
}
inline void expect_same_state(const fs::path& a, const fs::path& b) {
  expect_same_state(Checkpoint::open(a), Checkpoint::open(b));
}

}  // namespace mythos::testing
