// A fresh folder, a small model and its tensors for the checkpoint tests.
#pragma once

#include "base/file.h"
#include "base/log.h"
#include "base/random.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/layout.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace mythos::testing {

namespace fs = std::filesystem;

inline ModelConfig small_model() {
  ModelConfig m;
  m.vocab_size = 13;
  m.dim = 8;
  m.n_heads = 2;
  m.n_kv_heads = 1;
  m.max_seq_len = 16;
  m.max_loop_iters = 2;
  m.prelude_layers = 1;
  m.coda_layers = 0;
  m.kv_lora_rank = 4;
  m.q_lora_rank = 4;
  m.qk_rope_head_dim = 2;
  m.qk_nope_head_dim = 2;
  m.v_head_dim = 2;
  m.n_experts = 2;
  m.n_shared_experts = 1;
  m.n_experts_per_tok = 1;
  m.expert_dim = 4;
  m.lora_rank = 2;
  return m;
}

inline CheckpointMeta small_meta(int64_t step) {
  CheckpointMeta meta;
  meta.model = small_model();
  meta.step = step;
  meta.tokens = step * 32;
  meta.config = "[model]\npreset = \"x\" # caf\u00e9\n";
  meta.tokenizer = "xxh3:0123";
  meta.seed = UINT64_MAX;
  meta.data = Json{{"epoch", 1}, {"lanes", {1, 2, 3}}};
  meta.state = Json{{"best", 0.1}};
  meta.program = "mythos 0.1.0";
  meta.libtorch = "2.15.0";
  meta.host = "host";
  meta.device = "cpu";
  meta.created = "2026-05-24T19:58:10Z";
  return meta;
}

/// The tensors of a checkpoint with numbers that follow from the seed.
struct Numbers {
  std::vector<std::vector<float>> values;
  std::vector<TensorBytes> tensors;

  explicit Numbers(uint64_t seed, const ModelConfig& model = small_model()) {
    Random random(derive_seed(seed, 0, "numbers"));
    for (TensorInfo& info : checkpoint_tensors(model)) {
      auto& v = values.emplace_back(static_cast<size_t>(info.numel()));
      for (float& x : v) x = static_cast<float>(random.uniform() - 0.5);
      tensors.push_back({std::move(info), {}});
    }
    for (size_t i = 0; i < values.size(); ++i) tensors[i].data = std::as_bytes(std::span(values[i]));
  }
};

/// Whether the file holds exactly these numbers.
inline bool holds(const Checkpoint& c, const Numbers& n) {
  for (const TensorBytes& t : n.tensors) {
    const auto data = c.file.data(c.file.at(t.name));
    if (!std::equal(data.begin(), data.end(), t.data.begin(), t.data.end())) return false;
  }
  return true;
}

inline std::string error_line(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& e) {
    return e.line();
  }
  return "no error";
}

class CheckpointTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "mythos_checkpoint_XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    root_ = name;
    dir_ = root_ / "checkpoints";
    log::set_quiet(true);
    log::set_file(root_ / "log.txt");
  }
  void TearDown() override {
    log::set_file("");
    fs::remove_all(root_);
  }

  [[nodiscard]] std::string logged() const { return read_file(root_ / "log.txt"); }

  /// Names in the checkpoint folder, sorted.
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (const auto& e : fs::directory_iterator(dir_)) out.push_back(e.path().filename().string());
    std::sort(out.begin(), out.end());
    return out;
  }

  static void flip_bit(const fs::path& path, uint64_t byte, int bit) {
    std::fstream f(path, std::ios::binary | std::ios::in | std::ios::out);
    f.seekg(static_cast<int64_t>(byte));
    const auto c = static_cast<char>(f.get() ^ (1 << bit));
    f.seekp(static_cast<int64_t>(byte));
    f.put(c);
  }

  fs::path root_;
  fs::path dir_;
};

}  // namespace mythos::testing
