// The catalogue as it ships, what a user lays over it, and what is wrong in it said in a sentence.
#include "plan/hardware.h"

#include "base/error.h"
#include "base/file.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <functional>

namespace mythos {
namespace {

std::string error_of(const std::function<void()>& what, ExitCode code = ExitCode::usage) {
  try {
    what();
  } catch (const Error& e) {
    EXPECT_EQ(static_cast<int>(e.code()), static_cast<int>(code)) << e.line();
    EXPECT_EQ(e.line().find('\n'), std::string::npos) << e.line();
    return e.line();
  }
  ADD_FAILURE() << "no error";
  return "";
}
bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Hardware, TheBuiltInCatalogueIsWholeAndSound) {
  const Catalogue c = Catalogue::built_in();
  EXPECT_FALSE(c.dated().empty());
  for (const char* name : {"A10G", "L4", "L40S", "A100-40GB", "A100-80GB", "H100", "H100 PCIe", "H200", "B200",
                           "RTX 3090", "RTX 4090", "RTX 5090"}) {
    EXPECT_GT(c.gpu(name).bf16_flops, 5e13) << name;
    EXPECT_GT(c.gpu(name).bandwidth, 1e11) << name;
  }
  const Gpu& l40s = c.gpu("l40s");
  EXPECT_EQ(l40s.memory_bytes >> 20, 46068);
  EXPECT_NEAR(l40s.bf16_flops, 362e12, 1e12);
  for (const char* family : {"g5.", "g6.", "g6e."}) {
    for (const char* size :
         {"xlarge", "2xlarge", "4xlarge", "8xlarge", "12xlarge", "16xlarge", "24xlarge", "48xlarge"}) {
      const Instance& i = c.instance(std::string(family) + size);
      for (const char* region : {"us-east-1", "us-west-2", "ap-northeast-1"}) {
        EXPECT_TRUE(i.price(region).has_value()) << i.name << " in " << region;
      }
    }
  }
  for (const char* name : {"p4d.24xlarge", "p4de.24xlarge", "p5.48xlarge", "p5en.48xlarge"}) {
    EXPECT_EQ(c.instance(name).gpus, 8) << name;
    EXPECT_EQ(c.instance(name).quota, "P") << name;
  }
  EXPECT_EQ(c.instance("p5.4xlarge").gpus, 1);
  EXPECT_FALSE(c.instance("p5e.48xlarge").price("us-east-2").has_value()) << "not sold on demand";
  for (const Instance& i : c.instances()) {
    EXPECT_TRUE(c.gpu(i.gpu).unsupported.empty()) << i.name;
    EXPECT_FALSE(i.quota.empty()) << i.name;
    for (const auto& [region, price] : i.prices) EXPECT_GT(price, 0) << i.name << region;
  }
  const Instance& big = c.instance("g6e.8xlarge");
  EXPECT_EQ(big.vcpus, 32);
  EXPECT_EQ(big.gpus, 1);
  EXPECT_EQ(big.local_disk_bytes, 900'000'000'000);
  EXPECT_DOUBLE_EQ(big.network, 25e9 / 8);
  EXPECT_DOUBLE_EQ(c.instance("p5.48xlarge").network, 400e9);
  EXPECT_DOUBLE_EQ(c.gpu("H100").link, 450e9) << "900 is both directions";
  EXPECT_EQ(c.gpu("RTX 4090").link, 0) << "not looked up: left out";
  EXPECT_DOUBLE_EQ(*big.price("us-east-1"), 4.52856);
  EXPECT_FALSE(big.price("eu-west-1").has_value()) << "not looked up: left out";
}

TEST(Hardware, NamesAreFoundHoweverTheyAreSpelt) {
  const Catalogue c = Catalogue::built_in();
  EXPECT_EQ(c.gpu("L40s").name, "L40S");
  EXPECT_EQ(c.gpu("rtx4090").name, "RTX 4090");
  EXPECT_EQ(c.gpu("a100-80").name, "A100-80GB");
  EXPECT_EQ(c.gpu_of_device("NVIDIA L40S")->name, "L40S");
  EXPECT_EQ(c.gpu_of_device("NVIDIA A100-SXM4-80GB")->name, "A100-80GB");
  EXPECT_EQ(c.gpu_of_device("NVIDIA H100 80GB HBM3")->name, "H100");
  EXPECT_EQ(c.gpu_of_device("NVIDIA H100 PCIe")->name, "H100 PCIe");
  EXPECT_EQ(c.gpu_of_device("NVIDIA H100 NVL")->name, "H100 NVL");
  EXPECT_EQ(c.gpu_of_device("NVIDIA A40")->name, "A40");
  EXPECT_EQ(c.gpu_of_device("NVIDIA RTX A4000"), nullptr) << "no A40";
  EXPECT_EQ(c.gpu_of_device("AMD EPYC 7R13"), nullptr);
  EXPECT_TRUE(holds(error_of([&] { (void)c.gpu("L40X"); }), "did you mean 'L40"));
  EXPECT_TRUE(holds(error_of([&] { (void)c.gpu("a100"); }), "A100-40GB, A100-80GB"));
  EXPECT_TRUE(holds(error_of([&] { (void)c.instance("g6e.9xlarge"); }), "xlarge"));
  EXPECT_TRUE(holds(error_of([&] { (void)c.region("us-east-9"); }), "us-east-"));
}

TEST(Hardware, CardsWithoutBf16AreRefusedWithTheReason) {
  const Catalogue c = Catalogue::built_in();
  for (const char* name : {"T4", "V100"}) {
    const std::string line = error_of([&] { (void)c.supported_gpu(name); }, ExitCode::refused);
    EXPECT_TRUE(holds(line, "no bf16")) << line;
  }
}

TEST(Hardware, AUsersEntriesAreLaidOver) {
  Catalogue c = Catalogue::built_in();
  c.add(
      "[[instance]]\nname = \"g6e.xlarge\"\nprices = { us-east-1 = 1.5 }\n"
      "[[gpu]]\nname = \"Mine\"\nmemory_mib = 10000\nbf16_tflops = 50\nbandwidth_gb_s = 500\n"
      "[[instance]]\nname = \"under my desk\"\ngpu = \"Mine\"\ngpus = 1\nvcpus = 16\nmemory_gib = 64\nprice = 0.3\n"
      "[[gpu]]\nname = \"RTX 4090\"\nlink_gb_s = 32\n"
      "[[instance]]\nname = \"g5.xlarge\"\nnetwork_gbit_s = 8\n"
      "[estimate]\nmfu = 0.3\n",
      "mine.toml");
  EXPECT_DOUBLE_EQ(c.gpu("RTX 4090").link, 32e9);
  EXPECT_DOUBLE_EQ(c.instance("g5.xlarge").network, 1e9);
  EXPECT_DOUBLE_EQ(*c.instance("g6e.xlarge").price("us-east-1"), 1.5);
  EXPECT_DOUBLE_EQ(*c.instance("g6e.xlarge").price("ap-northeast-1"), 2.699) << "the rest stays";
  EXPECT_EQ(c.instance("g6e.xlarge").vcpus, 4);
  EXPECT_DOUBLE_EQ(*c.instance("under my desk").price("anywhere"), 0.3);
  EXPECT_TRUE(c.instance("under my desk").quota.empty());
  EXPECT_DOUBLE_EQ(c.assumed().mfu, 0.3);
  EXPECT_DOUBLE_EQ(c.assumed().high, 0.44);
}

TEST(Hardware, WhatIsWrongInAFileIsSaidWithItsPlace) {
  const auto wrong = [](const std::string& text) {
    Catalogue c = Catalogue::built_in();
    const size_t before = c.gpus().size();
    const std::string line = error_of([&] { c.add(text, "mine.toml"); });
    EXPECT_TRUE(holds(line, "mine.toml")) << line;
    EXPECT_EQ(c.gpus().size(), before) << "nothing of a bad file is taken";
    return line;
  };
  EXPECT_TRUE(
      holds(wrong("[[gpu]]\nname = \"X\"\nmemory_mib = 1000\nbandwidth_gb_s = 5\n"), "has no field 'bf16_tflops'"));
  EXPECT_TRUE(holds(wrong("[[instance]]\nname = \"g5.xlarge\"\nprices = { us-east-1 = -1 }\n"), "us-east-1 is -1"));
  EXPECT_TRUE(holds(wrong("[[instance]]\nname = \"x\"\ngpu = \"L40Z\"\ngpus = 1\nvcpus = 1\nmemory_gib = 1\n"),
                    "did you mean 'L40"));
  EXPECT_TRUE(
      holds(wrong("[[instance]]\nname = \"x\"\ngpu = \"L4\"\ngpus = 1\nvcpu = 1\nmemory_gib = 1\n"), "'vcpus'"));
  EXPECT_TRUE(holds(wrong("[[gpu]]\nname = \"L4\"\nbandwith_gb_s = 5\n"), "did you mean 'bandwidth_gb_s'"));
  EXPECT_TRUE(holds(wrong("[[gpu]]\nname = \"L4\"\nbandwidth_gb_s = nan\n"), "line 3"));
  EXPECT_TRUE(holds(wrong("[[gpu]]\nname = \"L4\"\nlink_gb_s = 0\n"), "link_gb_s is 0"));
  EXPECT_TRUE(holds(wrong("[[instance]]\nname = \"g5.xlarge\"\nnetwork_gbit_s = \"25\"\n"), "must be a number"));
  EXPECT_TRUE(holds(wrong("gpu = 3\n"), "[[gpu]]"));
  EXPECT_TRUE(holds(wrong("[[gpu]]\nmemory_mib = 3\n"), "has no field 'name'"));
  EXPECT_TRUE(holds(wrong("[[gpus]]\nname = \"L4\"\n"), "did you mean 'gpu'"));
  EXPECT_TRUE(holds(wrong("[estimate]\nmfu = 0.5\n"), "in this order"));
  EXPECT_TRUE(holds(wrong("[[gpu]\n"), "line 1"));
}

TEST(Hardware, TheFileInTheHomeFolderIsRead) {
  const std::filesystem::path home =
      std::filesystem::temp_directory_path() / fmt::format("mythos_hardware_{}", ::getpid());
  std::filesystem::create_directories(home / "mythos");
  std::ofstream(home / "mythos" / "hardware.toml") << "[[instance]]\nname = \"g5.xlarge\"\nprice = 9\n";
  std::ofstream(home / "more.toml") << "[[instance]]\nname = \"g5.xlarge\"\nprice = 8\n";
  const char* const before = std::getenv("XDG_CONFIG_HOME");
  const std::string kept = before != nullptr ? before : "";
  ::setenv("XDG_CONFIG_HOME", home.c_str(), 1);
  EXPECT_DOUBLE_EQ(*Catalogue::load().instance("g5.xlarge").price("us-east-1"), 9);
  EXPECT_DOUBLE_EQ(*Catalogue::load(home / "more.toml").instance("g5.xlarge").price("us-east-1"), 8);
  EXPECT_TRUE(holds(error_of([&] { Catalogue::load(home / "none.toml"); }), "none.toml"));
  before != nullptr ? ::setenv("XDG_CONFIG_HOME", kept.c_str(), 1) : ::unsetenv("XDG_CONFIG_HOME");
  std::filesystem::remove_all(home);
}

}  // namespace
}  // namespace mythos
