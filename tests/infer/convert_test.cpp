// Converting whole files, and going on from the reference's checkpoint as the reference itself does.
#include "infer/convert.h"

#include "../support/tiny.h"
#include "base/error.h"
#include "checkpoint/export.h"
#include "checkpoint/layout.h"
#include "infer/checkpoint_io.h"
#include "step/train_step.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

namespace mythos {
namespace {

namespace fs = std::filesystem;

constexpr const char* golden = MYTHOS_TEST_DIR "/golden/mla_step_0000600";

at::Tensor tensor_of(const SafetensorsFile& file, std::string_view name, at::ScalarType type) {
  const auto& e = file.at(name);
  at::Tensor out = at::empty(e.shape, type);
  const auto bytes = file.data(e);
  std::memcpy(out.mutable_data_ptr(), bytes.data(), bytes.size());
  return out;
}

class ConvertTest : public ::testing::Test {
 protected:
  ConvertTest() : pt_(std::string(golden) + ".pt") { log::set_quiet(true); }

  static std::string error_line(const std::function<void()>& work) {
    try {
      work();
    } catch (const Error& e) {
      return e.line();
    }
    return "no error";
  }
  static void expect_within(const std::string& line, std::string_view part) {
    EXPECT_NE(line.find(part), std::string::npos) << line;
  }
  static std::vector<std::string> names_in(const fs::path& folder) {
    std::vector<std::string> out;
    for (const auto& e : fs::directory_iterator(folder)) out.push_back(e.path().filename().string());
    std::sort(out.begin(), out.end());
    return out;
  }

  testing::TemporaryFolder folder_;
  fs::path pt_;
};

TEST_F(ConvertTest, LogitsAreThoseOfTheReference) {
  const auto expected = SafetensorsFile::open(std::string(golden) + "_expected.safetensors");
  const at::Tensor ids = tensor_of(expected, "input_ids", at::kLong);
  const at::Tensor logits = tensor_of(expected, "logits", at::kFloat);
  convert(pt_, folder_ / "all.safetensors", {});
  convert(folder_ / "all.safetensors", folder_ / "weights.safetensors", {});
  convert(folder_ / "all.safetensors", folder_ / "again.pt", {});
  convert(pt_, folder_ / "both.safetensors", {.both_heads = true});
  convert(pt_, folder_ / "out/", {});
  for (const fs::path& path : {pt_, folder_ / "all.safetensors", folder_ / "weights.safetensors", folder_ / "again.pt",
                               folder_ / "both.safetensors", folder_ / "out/model.safetensors"}) {
    const LoadedModel loaded = load_model(path, at::kCPU, at::kDouble);
    const at::Tensor ours = loaded.model->logits(loaded.model->hidden(ids));
    EXPECT_LT((ours - logits).abs().max().item<double>(), 3e-6) << path;  // the expected ones are fp32
    EXPECT_EQ(loaded.meta.step, path.filename() == "both.safetensors" ? 0 : 600) << path;
  }
  EXPECT_EQ(names_in(folder_ / "out"), (std::vector<std::string>{"config.json", "model.safetensors"}));
  EXPECT_TRUE(Checkpoint::open(folder_ / "all.safetensors").has_optimizer);
  EXPECT_FALSE(Checkpoint::open(folder_ / "weights.safetensors").has_optimizer);
}

// The reference went on for four steps from its own checkpoint, with these rows and learning rates.
TEST_F(ConvertTest, TheNextStepsAreThoseOfTheReference) {
  const Json next = Json::parse(read_file(std::string(golden) + "_next.json"));
  convert(pt_, folder_ / "all.safetensors", {});
  for (const fs::path& path : {pt_, folder_ / "all.safetensors"}) {
    const Checkpoint checkpoint = open_checkpoint(path);
    Model model(checkpoint.meta.model, at::kCPU, at::kFloat, at::kFloat, true);
    AdamW optimizer(model.parameters(), {});
    load_weights(checkpoint, model);
    load_moments(checkpoint, optimizer);
    optimizer.set_steps(checkpoint.meta.state.value("optimizer_steps", checkpoint.meta.step));
    EXPECT_EQ(optimizer.steps(), 1);
    EXPECT_FALSE(optimizer.lags().empty());
    TrainStep step(model, optimizer);
    for (size_t k = 0; k < next["loss"].size(); ++k) {
      at::Tensor rows = at::empty({2, 25}, at::kLong);
      for (size_t b = 0; b < 2; ++b) {
        for (size_t t = 0; t < 25; ++t) {
          rows.mutable_data_ptr<int64_t>()[b * 25 + t] = next["ids"][k][b][t].get<int64_t>();
        }
      }
      step.begin({.clip = 1.0, .loss_tokens = 48});
      step.micro_step(rows.narrow(1, 0, 24).contiguous(), rows.narrow(1, 1, 24).contiguous());
      const StepResult result = step.finish(next["lr"][k].get<double>());
      EXPECT_NEAR(result.loss, next["loss"][k].get<double>(), 2e-5) << path << " step " << k;
      EXPECT_NEAR(result.gradient_norm, next["norm"][k].get<double>(), 2e-4) << path << " step " << k;
    }
  }
}

TEST_F(ConvertTest, NothingIsReplacedUnasked) {
  testing::write_text(folder_ / "x.safetensors", "mine");
  expect_within(error_line([&] { convert(pt_, folder_ / "x.safetensors", {}); }), "is there already");
  EXPECT_EQ(read_file(folder_ / "x.safetensors"), "mine");
  convert(pt_, folder_ / "x.safetensors", {.force = true});
  expect_within(error_line([&] { convert(folder_ / "x.safetensors", folder_ / "x.safetensors", {.force = true}); }),
                "replace itself");
  fs::create_directory(folder_ / "out");
  testing::write_text(folder_ / "out/config.json", "mine");
  expect_within(error_line([&] { convert(pt_, folder_ / "out", {}); }), "config.json is there already");
  EXPECT_EQ(names_in(folder_ / "out"), std::vector<std::string>{"config.json"});
  expect_within(error_line([&] { convert(pt_, folder_ / "x.txt", {}); }), "neither");
  expect_within(error_line([&] { convert(folder_ / "none.pt", folder_ / "y.pt", {}); }), "no checkpoint at");
  expect_within(error_line([&] { convert(pt_, folder_ / "y.pt", {.both_heads = true}); }), "--both-heads");
}

TEST_F(ConvertTest, NothingIsLeftOfWhatCannotBeWritten) {
  fs::create_directory(folder_ / "none");
  testing::write_text(folder_ / "none/file", "");
  for (const char* name : {"x.pt", "x.safetensors"}) {
    EXPECT_NE(error_line([&] { convert(pt_, folder_ / "none/file" / name, {}); }), "no error");
  }
  std::string damaged = read_file(pt_);
  damaged[damaged.size() / 2] = static_cast<char>(damaged[damaged.size() / 2] ^ 4);
  testing::write_text(folder_ / "bad.pt", damaged);
  expect_within(error_line([&] { convert(folder_ / "bad.pt", folder_ / "out/", {}); }), "damaged");
  EXPECT_FALSE(fs::exists(folder_ / "out"));
  EXPECT_EQ(names_in(folder_ / "none"), std::vector<std::string>{"file"});
}

// A file at the process's size limit fails like one on a full disk, and needs no rights to cause.
TEST_F(ConvertTest, NothingIsLeftOnAFullDisk) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{100'000, 100'000};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) ::_exit(77);
    int failed = 0;
    for (const char* name : {"x.pt", "x.safetensors", "out/"}) {
      failed += static_cast<int>(error_line([&] { convert(pt_, folder_ / name, {}); }) != "no error");
    }
    ::_exit(failed == 3 ? 0 : 1);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) GTEST_SKIP() << "no limit can be set here";
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_TRUE(fs::is_empty(folder_.path()));
}

TEST_F(ConvertTest, ATokenizerOfAnotherVocabularyIsRefused) {
  testing::small_tokenizer(testing::generated_documents(10'000), 300).save(folder_ / "tokenizer.json");
  const ConvertOptions options{.tokenizer = (folder_ / "tokenizer.json").string()};
  expect_within(error_line([&] { convert(pt_, folder_ / "out/", options); }), "has 300 tokens");
  expect_within(error_line([&] { convert(pt_, folder_ / "x.safetensors", options); }), "the model 97");
  EXPECT_EQ(names_in(folder_.path()), std::vector<std::string>{"tokenizer.json"});
}

}  // namespace
}  // namespace mythos
