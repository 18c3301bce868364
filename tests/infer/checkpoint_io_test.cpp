#include "infer/checkpoint_io.h"

#include "../support/tiny.h"
#include "base/error.h"
#include "checkpoint/layout.h"
#include "checkpoint/store.h"
#include "config/run_config.h"

namespace mythos {
namespace {

namespace fs = std::filesystem;

class CheckpointIoTest : public ::testing::Test {
 protected:
  CheckpointIoTest() : tokenizer_(testing::small_tokenizer(testing::generated_documents(10'000), 300)) {
    log::set_quiet(true);
    tokenizer_.save(folder_ / "tokenizer.json");
    text_ = std::string(testing::tiny_model_toml) + "vocab_size = 300\n[tokenizer]\npath = \"" +
            (folder_ / "tokenizer.json").string() + "\"\n";
    config_ = parse_config(text_, "tiny", "tiny").model;
  }

  // Every number another one, so that a tensor in another's place shows.
  static void fill(const std::vector<NamedTensor>& tensors, double first) {
    double n = first;
    for (const auto& [name, t] : tensors) {
      t.copy_(at::arange(t.numel(), at::kFloat).mul(1e-4).add(n).reshape(t.sizes()));
      n += 1;
    }
  }
  static bool same(const std::vector<NamedTensor>& a, const std::vector<NamedTensor>& b) {
    if (a.size() != b.size()) return false;
    for (size_t i = 0; i < a.size(); ++i) {
      if (a[i].name != b[i].name || !at::equal(a[i].tensor, b[i].tensor)) return false;
    }
    return true;
  }

  fs::path save(const Model& model, const AdamW& optimizer, int64_t step, const fs::path& dir) {
    CheckpointMeta meta;
    meta.step = step;
    meta.model = model.config();
    meta.config = text_;
    meta.tokenizer = tokenizer_.fingerprint();
    meta.data = Json::object();
    meta.state = Json::object();
    fs::create_directories(dir);
    std::vector<at::Tensor> copies;
    const fs::path path = dir / checkpoint_name(step);
    save_checkpoint(path, meta, training_tensors(model, optimizer, copies));
    return path;
  }

  static std::string line_of(const std::function<void()>& work, ExitCode code) {
    try {
      work();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), code) << e.line();
      return e.line();
    }
    ADD_FAILURE() << "no error";
    return "";
  }

  testing::TemporaryFolder folder_;
  Tokenizer tokenizer_;
  std::string text_;
  ModelConfig config_;
};

TEST_F(CheckpointIoTest, WeightsBuffersAndMomentsComeBackBitForBit) {
  Model a(config_, at::kCPU, at::kFloat, at::kFloat, true);
  AdamW x(a.parameters(), {});
  fill(a.parameters().named_values(), 1);
  fill(a.named_buffers(), 1000);
  fill(x.named_first_moments(), 2000);
  fill(x.named_second_moments(), 3000);
  const fs::path path = save(a, x, 3, folder_.path());

  Model b(config_, at::kCPU, at::kFloat, at::kFloat, true);
  AdamW y(b.parameters(), {});
  const Checkpoint c = open_checkpoint(path);
  load_weights(c, b);
  load_moments(c, y);
  EXPECT_TRUE(same(a.parameters().named_values(), b.parameters().named_values()));
  EXPECT_TRUE(same(a.named_buffers(), b.named_buffers()));
  EXPECT_TRUE(same(x.named_first_moments(), y.named_first_moments()));
  EXPECT_TRUE(same(x.named_second_moments(), y.named_second_moments()));
}

TEST_F(CheckpointIoTest, AModelLoadsFromAFileAndFromARunsFolder) {
  Model a(config_, at::kCPU, at::kFloat, at::kFloat, true);
  AdamW x(a.parameters(), {});
  fill(a.parameters().named_values(), 1);
  save(a, x, 3, folder_ / "run/checkpoints");
  fill(a.parameters().named_values(), 5);
  const fs::path newest = save(a, x, 6, folder_ / "run/checkpoints");
  for (const fs::path& path : {newest, folder_ / "run", folder_ / "run/checkpoints"}) {
    const LoadedModel loaded = load_model(path, at::kCPU, at::kFloat);
    EXPECT_EQ(loaded.meta.step, 6) << path;
    EXPECT_TRUE(same(a.parameters().named_values(), loaded.model->parameters().named_values()));
  }
  EXPECT_EQ(load_tokenizer_of(load_model(newest, at::kCPU, at::kFloat).meta, "").fingerprint(),
            tokenizer_.fingerprint());
  // The newest is damaged: the one before is used, and nothing in the folder changes.
  testing::flip_bit(newest, fs::file_size(newest) - 100);
  const auto before = testing::snapshot(folder_ / "run");
  EXPECT_EQ(load_model(folder_ / "run", at::kCPU, at::kFloat).meta.step, 3);
  EXPECT_EQ(testing::snapshot(folder_ / "run"), before);
  EXPECT_THROW(load_model(newest, at::kCPU, at::kFloat), Error);
}

TEST_F(CheckpointIoTest, CheckpointsOutsideTheRunsFolderAreFoundThroughItsConfig) {
  Model a(config_, at::kCPU, at::kFloat, at::kFloat, true);
  AdamW x(a.parameters(), {});
  save(a, x, 3, folder_ / "elsewhere");
  fs::create_directories(folder_ / "run");
  testing::write_text(folder_ / "run/config.toml",
                      "[checkpoint]\ndir = \"" + (folder_ / "elsewhere").string() + "\"\n");
  EXPECT_EQ(open_checkpoint(folder_ / "run").meta.step, 3);
  // A run that was set aside names a folder that is another run's now: its own comes first.
  save(a, x, 9, folder_ / "run/checkpoints");
  EXPECT_EQ(open_checkpoint(folder_ / "run").meta.step, 9);
}

TEST_F(CheckpointIoTest, OtherModelsAndMissingFilesAreNamed) {
  Model a(config_, at::kCPU, at::kFloat, at::kFloat, true);
  AdamW x(a.parameters(), {});
  const Checkpoint c = Checkpoint::open(save(a, x, 1, folder_.path()));
  ModelConfig other = config_;
  other.dim = 32;
  other.expert_dim = 16;
  Model b(other, at::kCPU, at::kFloat, at::kFloat, true);
  const auto line = line_of([&] { load_weights(c, b); }, ExitCode::usage);
  EXPECT_NE(line.find("dim is 16 there, 32 here"), std::string::npos) << line;
  EXPECT_NE(line.find("expert_dim is 8 there, 16 here"), std::string::npos) << line;
  EXPECT_NE(line_of([&] { open_checkpoint(folder_ / "none"); }, ExitCode::usage).find("there is no checkpoint"),
            std::string::npos);
  fs::create_directories(folder_ / "empty");
  EXPECT_NE(line_of([&] { open_checkpoint(folder_ / "empty"); }, ExitCode::usage).find("holds no checkpoint"),
            std::string::npos);
  testing::write_text(folder_ / "text.safetensors", "this is no checkpoint");
  line_of([&] { open_checkpoint(folder_ / "text.safetensors"); }, ExitCode::failed);
}

TEST_F(CheckpointIoTest, WeightsAloneHaveNoMoments) {
  Model a(config_, at::kCPU, at::kFloat, at::kFloat, true);
  AdamW x(a.parameters(), {});
  fill(a.parameters().named_values(), 1);
  write_weights_only(Checkpoint::open(save(a, x, 1, folder_.path())), folder_ / "weights.safetensors");
  const Checkpoint c = open_checkpoint(folder_ / "weights.safetensors");
  Model b(config_, at::kCPU, at::kFloat, at::kFloat, true);
  AdamW y(b.parameters(), {});
  load_weights(c, b);
  EXPECT_TRUE(same(a.parameters().named_values(), b.parameters().named_values()));
  EXPECT_NE(line_of([&] { load_moments(c, y); }, ExitCode::usage).find("--weights-only"), std::string::npos);
}

TEST_F(CheckpointIoTest, AnotherTokenizerIsRefusedWithBothFingerprints) {
  CheckpointMeta meta;
  meta.config = text_;
  meta.tokenizer = tokenizer_.fingerprint();
  const Tokenizer other = testing::small_tokenizer(testing::generated_documents(10'000, 77), 300);
  other.save(folder_ / "other.json");
  ASSERT_NE(other.fingerprint(), tokenizer_.fingerprint());
  const auto line = line_of([&] { load_tokenizer_of(meta, folder_ / "other.json"); }, ExitCode::usage);
  EXPECT_NE(line.find(other.fingerprint()), std::string::npos) << line;
  EXPECT_NE(line.find(tokenizer_.fingerprint()), std::string::npos) << line;
  EXPECT_NE(line_of([&] { load_tokenizer_of(meta, folder_ / "none.json"); }, ExitCode::usage).find("is not there"),
            std::string::npos);
  meta.config = "[model]\ndim = 16\nn_heads = 2\n";
  EXPECT_NE(line_of([&] { load_tokenizer_of(meta, ""); }, ExitCode::usage).find("names no tokenizer"),
            std::string::npos);
}

TEST_F(CheckpointIoTest, OtherDtypesAreConvertedFromTheStoredNumbers) {
  Model a(config_, at::kCPU, at::kFloat, at::kFloat, true);
  AdamW x(a.parameters(), {});
  initialize(a.parameters(), config_, 4);
  const fs::path path = save(a, x, 1, folder_.path());
  for (const auto dtype : {at::kDouble, at::kBFloat16}) {
    const LoadedModel loaded = load_model(path, at::kCPU, dtype);
    const auto values = loaded.model->parameters().named_values();
    const auto wanted = a.parameters().named_values();
    for (size_t i = 0; i < values.size(); ++i)
      EXPECT_TRUE(at::equal(values[i].tensor, wanted[i].tensor.to(dtype))) << values[i].name;
  }
}

}  // namespace
}  // namespace mythos
