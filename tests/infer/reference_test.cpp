// What `mythos convert` writes, read by the Python reference itself, where scripts/peers has installed it.
#include "../support/program.h"
#include "../support/tiny.h"
#include "infer/convert.h"

namespace mythos {
namespace {

namespace fs = std::filesystem;

TEST(Reference, ReadsWhatIsConverted) {
  const fs::path peer = MYTHOS_DEPS_DIR "/peers/reference";
  std::error_code ec;
  if (!fs::exists(peer / "stamp", ec)) GTEST_SKIP() << "scripts/peers reference installs it (5.6 GB)";
  log::set_quiet(true);
  const std::string golden = MYTHOS_TEST_DIR "/golden/mla_step_0000600";
  const testing::TemporaryFolder folder;
  convert(golden + ".pt", folder / "all.safetensors", {});
  convert(folder / "all.safetensors", folder / "again.pt", {});
  convert(folder / "all.safetensors", folder / "both.safetensors", {.both_heads = true});
  convert(folder / "all.safetensors", folder / "out/", {});
  testing::Program::Options options;
  options.folder = folder.path();
  options.program = read_file(peer / "python");
  options.program.erase(options.program.find_last_not_of('\n') + 1);
  options.environment = {{"PYTHONPATH", (peer / "site").string()}, {"PYTHONDONTWRITEBYTECODE", "1"}};
  const auto said = testing::run_program(
      {"-W", "ignore", MYTHOS_TEST_DIR "/peers/reference_peer.py", folder.path().string(), golden}, options);
  ASSERT_EQ(said.code, 0) << said.err;
  const Json out = Json::parse(said.out);
  for (const char* name : {"pt", "folder", "both"}) EXPECT_LT(out[name].get<double>(), 1e-5) << name;
  EXPECT_EQ(out["head shares"], true);
  EXPECT_EQ(out["step"], 600);
  EXPECT_EQ(out["missing"], (Json{"freqs_cis", "freqs_cis_mla", "head.weight"}));
  EXPECT_TRUE(out["unexpected"].empty());
  EXPECT_LT(out["losses off"].get<double>(), 2e-6);
}

}  // namespace
}  // namespace mythos
