// What a configuration may have wrong, and what is said about it.
#include "config/value.h"
#include "files.h"
#include "parsing.h"

#include <algorithm>

namespace mythos {
namespace {

TEST(FieldCaseN5, MisspeltKey) {
  EXPECT_SAYS(complaint("[train]\n\nlerning_rate = 1e-3\n"),
              "test.toml line 3: train.lerning_rate is not a key (did you mean 'lr'?)");
  EXPECT_SAYS(complaint("[train]\nlearning_rate = 1e-3\n"), "did you mean 'lr'?");
  EXPECT_SAYS(complaint("[train]\nwarmup_stpes = 3\n"), "did you mean 'warmup_steps'?");
  EXPECT_SAYS(complaint("[train]\nbatch_size = 3\n"), "did you mean 'micro_batch'?");
  EXPECT_SAYS(complaint("[model]\nn_head = 3\n"), "did you mean 'n_heads'?");
  EXPECT_SAYS(complaint("[train]\nfrobnicate_quickly = 3\n"), "[train] has device, dtype");
}

TEST(FieldCaseN5, RightKeyInTheWrongTable) {
  EXPECT_SAYS(complaint("[model]\nlr = 1e-3\n"), "line 2: model.lr is not a key (this key belongs to [train])");
  EXPECT_SAYS(complaint("[checkpoint]\nseq_len = 16\n"), "this key belongs to [train]");
  EXPECT_SAYS(complaint("[train]\ndim = 16\n"), "this key belongs to [model]");
  EXPECT_SAYS(complaint("[train]\ndir = \"x\"\n"), "this key belongs to [checkpoint] or [run]");
  EXPECT_SAYS(complaint("[data]\nlearning_rate = 1\n"), "did you mean 'lr' in [train]?");
  EXPECT_SAYS(complaint("lr = 1e-3\n"), "line 1: 'lr' stands outside any section (this key belongs to [train])");
}

TEST(FieldCaseN5, UnknownSection) {
  EXPECT_SAYS(complaint("[trian]\nlr = 1e-3\n"), "line 1: [trian] is not a section (did you mean 'train'?)");
  EXPECT_SAYS(complaint("\n[wandb]\nproject = \"x\"\n"), "line 2: [wandb] is not a section");
  EXPECT_SAYS(complaint("train = 3\n"), "'train' must be a section with keys: [train]");
  EXPECT_SAYS(complaint("[[train]]\nlr = 1e-3\n"), "'train' must be a section with keys");
}

TEST(FieldCaseN5, DuplicateKey) {
  for (const char* text : {"[train]\nlr = 1e-3\nlr = 2e-3\n", "train.lr = 1e-3\n\ntrain.lr = 1\n",
                           "[train]\nlr = 1e-3\n[train]\nlr = 1e-3\n", "[train]\nlr = 1e-3\n\"lr\" = 1\n"}) {
    const std::string said = complaint(text);
    EXPECT_SAYS(said, "line 3: ");
    EXPECT_TRUE(said.find("lr") != std::string::npos || said.find("train") != std::string::npos) << said;
  }
}

TEST(FieldCaseN5, WholeNumberForFloatIsAccepted) {
  EXPECT_EQ(parsed("[train]\nclip = 1\n").train.clip, 1.0);
  EXPECT_EQ(parsed("[train]\nlr = 1\n").train.lr, 1.0);
  EXPECT_EQ(parsed("[train]\nbetas = [0, 0.5]\n").train.betas[0], 0.0);
}

TEST(FieldCaseN5, FloatForWholeNumberOnlyInTokenCounts) {
  EXPECT_EQ(parsed("[train]\ntarget_tokens = 1e9\n").train.target_tokens, 1'000'000'000);
  EXPECT_EQ(parsed("[train]\nglobal_batch_tokens = 524288.0\n").train.global_batch_tokens, 524288);
  EXPECT_SAYS(complaint("[train]\ntarget_tokens = 1000000.5\n"), "line 2: train.target_tokens is 1000000.5");
  EXPECT_SAYS(complaint("[train]\ntarget_tokens = 1e300\n"), "train.target_tokens is 1e+300");
  EXPECT_SAYS(complaint("[train]\nseq_len = 1e3\n"), "line 2: train.seq_len is 1000.0, it must be a whole number");
  EXPECT_SAYS(complaint("[train]\nseq_len = 1e3\n"), "write 1000");
  EXPECT_SAYS(complaint("[train]\nsteps = 1e9\n"), "write 1000000000");
  EXPECT_SAYS(complaint("[train]\nloops = 2.0\n"), "train.loops is 2.0");
}

TEST(FieldCaseN5, NumberInQuotes) {
  EXPECT_SAYS(complaint("[train]\ntarget_tokens = \"1e9\"\n"), "line 2: train.target_tokens is the text \"1e9\"");
  EXPECT_SAYS(complaint("[train]\nlr = \"6e-4\"\n"), "line 2: train.lr is the text \"6e-4\"");
  EXPECT_SAYS(complaint("[train]\ndecay_norms = \"true\"\n"), "it must be true or false");
  EXPECT_SAYS(complaint("[train]\ndecay_norms = 1\n"), "it must be true or false");
  EXPECT_SAYS(complaint("[run]\nname = 3\n"), "run.name is 3, it must be a text");
}

TEST(FieldCaseN5, BeyondSixtyFourBits) {
  EXPECT_EQ(parsed("[train]\nseed = 9223372036854775807\n").train.seed, INT64_MAX);
  const std::string said = complaint("[train]\nseed = 9223372036854775808\n");
  EXPECT_SAYS(said, "line 2");
  EXPECT_SAYS(said, "seed");
  EXPECT_SAYS(complaint("", {"train.seed=9223372036854775808"}), "--set train.seed: train.seed is the text");
  EXPECT_SAYS(complaint("[train]\nsteps = -9223372036854775808\n"), "train.steps is -9223372036854775808");
}

TEST(FieldCaseN5, InfinityAndNan) {
  for (const char* value : {"inf", "-inf", "+inf", "nan", "-nan"}) {
    EXPECT_SAYS(complaint(std::string("[train]\nlr = ") + value), "line 2: train.lr is");
    EXPECT_SAYS(complaint(std::string("[train]\ntarget_tokens = ") + value), "line 2: train.target_tokens is");
    EXPECT_SAYS(complaint(std::string("[model]\nrope_theta = ") + value), "line 2: model.rope_theta is");
    EXPECT_SAYS(complaint("", {std::string("train.clip=") + value}), "--set train.clip: train.clip is");
  }
}

TEST(FieldCaseN5, ByteOrderMarkAndCrlfAreAccepted) {
  EXPECT_EQ(parsed("\xEF\xBB\xBF[train]\r\nlr = 0.5\r\n").train.lr, 0.5);
  EXPECT_SAYS(complaint("\xEF\xBB\xBF[train]\r\n# remark\r\nlerning_rate = 1\r\n"), "line 3: train.lerning_rate");
  EXPECT_SAYS(complaint("[train]\r\nlr = \"x\"\r\n"), "\"x\"");
}

TEST(Problems, AllAtOnceInTheOrderOfTheFile) {
  const std::string said = complaint(R"([train]
lr = -1
stesp = 5
[model]
n_heads = 24
dim = 1024
[data]
lanes = 0
on_bad_data = "ignore"
[cost]
budget = "100"
)",
                                     {"log.every=0"});
  EXPECT_SAYS(said, "test.toml has 7 problems\n  line 2: train.lr is -1");
  size_t at = 0;
  for (const char* part :
       {"line 2: train.lr", "line 3: train.stesp", "line 5: model.n_heads 24 does not divide model.dim",
        "line 8: data.lanes is 0", "line 9: data.on_bad_data is the text \"ignore\"", "line 11: cost.budget",
        "--set log.every: log.every is 0"}) {
    const size_t next = said.find(part, at);
    ASSERT_NE(next, std::string::npos) << said << "\nlacks in order: " << part;
    at = next;
  }
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 7);
}

TEST(Problems, ABadValueDoesNotCausePhantoms) {
  // dim is unusable: nothing is said about heads that do not divide the default.
  const std::string said = complaint("[model]\ndim = \"wide\"\nn_heads = 24\n");
  EXPECT_SAYS(said, "line 2: model.dim");
  EXPECT_NOT_SAYS(said, "n_heads");
  EXPECT_NOT_SAYS(complaint("[train]\nseq_len = 0\nglobal_batch_tokens = 4\n"), "global_batch_tokens");
}

TEST(Problems, OfTheModelHaveTheirLine) {
  EXPECT_SAYS(complaint("[model]\npreset = \"300m\"\nqk_rope_head_dim = 31\n"),
              "line 3: model.qk_rope_head_dim is 31, it must be even");
  EXPECT_SAYS(complaint("[model]\npreset = \"300m\"\nn_experts_per_tok = 33\n"),
              "line 3: model.n_experts_per_tok is 33");
  EXPECT_SAYS(complaint("[model]\nattn_type = \"gqa\"\ndim = 48\nn_heads = 16\n"), "it must be even");
  EXPECT_SAYS(complaint("[model]\npreset = \"mythos_2b\"\n"), "line 2: model.preset is the text \"mythos_2b\"");
  EXPECT_SAYS(complaint("[model]\npreset = \"mythos_300\"\n"), "did you mean 'mythos_300m'?");
  EXPECT_SAYS(complaint("[model]\ndropout = 0.1\n"), "model.dropout is 0.1");
  EXPECT_SAYS(complaint("[model]\nattn_type = \"mqa\"\n"), "one of \"mla\", \"gqa\"");
  EXPECT_SAYS(complaint("[model]\ndim = 1000000000000\n"), "line 2: model.dim is 1000000000000");
}

TEST(Problems, KeysThatDoNotFitTogether) {
  EXPECT_SAYS(complaint("[model]\nmax_seq_len = 64\n[train]\nseq_len = 65\n"), "line 4: train.seq_len is 65");
  EXPECT_SAYS(complaint("[train]\nseq_len = 64\nglobal_batch_tokens = 63\n"),
              "line 3: train.global_batch_tokens is 63");
  EXPECT_SAYS(complaint("[train]\ntarget_tokens = 2000\n"), "line 2: train.target_tokens is 2,000, less than one step");
  EXPECT_SAYS(complaint("[train]\nmicro_batch = 65536\nseq_len = 1048576\n[model]\nmax_seq_len = 1048576\n"),
              "line 2: 68,719,476,736 tokens at once");
  EXPECT_SAYS(complaint("[model]\nmax_loop_iters = 8\n[train]\nloops = 9\n"), "line 4: train.loops asks for 9 loops");
  EXPECT_SAYS(complaint("[model]\nmax_loop_iters = 8\n[train]\nloops = {choices = [8, 12]}\n"), "asks for 12 loops");
  EXPECT_SAYS(complaint("[data]\nsource = [\"a\", \"b\"]\nweights = [1]\n"),
              "line 3: data.weights has 1 numbers for 2");
  EXPECT_SAYS(complaint("[data]\nlanes = 2\nworkers = 3\n"), "set data.lanes to at least 3");
  EXPECT_SAYS(complaint("[data]\ntext_column = \"\"\n"), "data.text_column is empty");
}

TEST(Problems, ListsAndChoices) {
  EXPECT_SAYS(complaint("[train]\nbetas = [0.9]\n"), "a list of two numbers of at least 0 and below 1");
  EXPECT_SAYS(complaint("[train]\nbetas = [0.9, 1.0]\n"), "train.betas is the list [0.9, 1.0]");
  EXPECT_SAYS(complaint("[train]\nbetas = 0.9\n"), "train.betas is 0.9");
  EXPECT_SAYS(complaint("[train]\nloops = 0\n"), "train.loops is 0");
  EXPECT_SAYS(complaint("[train]\nloops = []\n"), "train.loops is the list []");
  EXPECT_SAYS(complaint("[train]\nloops = {choices = []}\n"), "train.loops is the table {choices = []}");
  EXPECT_SAYS(complaint("[train]\nloops = {chioces = [1]}\n"), "{choices = [..]}");
  EXPECT_SAYS(complaint("[train]\nloops = {choices = [1, \"2\"]}\n"), "train.loops is the table");
  EXPECT_SAYS(complaint("[log]\nprompts = [\"a\", 3]\n"),
              "log.prompts is the list [\"a\", 3], it must be a list of texts");
  EXPECT_SAYS(complaint("[log]\nprompts = \"a\"\n"), "it must be a list of texts");
  EXPECT_SAYS(complaint("[data]\nsource = [\"a\", \"\"]\n"), "none of them empty");
  EXPECT_SAYS(complaint("[data]\nweights = [1, 0]\n"), "data.weights is the list [1, 0]");
  EXPECT_SAYS(complaint("[train]\nmicro_batch = \"atuo\"\n"), "or \"auto\"");
  EXPECT_SAYS(complaint("[train]\nmicro_batch = 0\n"), "train.micro_batch is 0");
  EXPECT_SAYS(complaint("[train]\nschedule = \"cosin\"\n"), "did you mean \"cosine\"?");
  EXPECT_SAYS(complaint("[train]\nlr = 1979-05-27\n"), "train.lr is a date");
  EXPECT_SAYS(complaint("[train]\nlr = {a = 1}\n"), "train.lr is the table {a = 1}");
}

TEST(Problems, NamesOfRunsAreOnePathComponent) {
  for (const char* name : {"a/b", "..", ".", "../x", "a\\nb"}) {
    EXPECT_SAYS(complaint("[run]\nname = \"" + std::string(name) + "\"\n"), "line 2: run.name is");
  }
  EXPECT_SAYS(complaint("[run]\ndir = \"a\\u0000b\"\n"), "line 2: run.dir is the text \"a?b\"");
}

TEST(HostileToml, SyntaxErrorsHaveALine) {
  for (const char* text : {"\n[train\n", "\n= 3\n", "\nlr = \n", "\n[train]]\n", "\n\"abc\n", "\na = [1,\n",
                           "\na = {b = 1\n", "\na = '''\nnever ended", "\na = \"\\q\"\n", "\nx y = 1\n"}) {
    EXPECT_SAYS(complaint(text), "test.toml line ");
  }
}

TEST(HostileToml, DeepNesting) {
  for (const char* open : {"[", "{a=", "[{a="}) {
    for (const int depth : {20, 300, 100'000}) {
      std::string text = "x = ";
      for (int i = 0; i < depth; ++i) text += open;
      EXPECT_SAYS(complaint(text), "line 1");
    }
  }
}

// Dotted keys nest as deeply as brackets, in every place a key may stand.
TEST(HostileToml, EndlessDottedKeys) {
  std::string chain = "a";
  for (int i = 0; i < 400'000; ++i) chain += ".a";
  const std::vector<std::string> texts = {
      chain + " = 1\n",
      "[" + chain + "]\n",
      "[[" + chain + "]]\n",
      "x = {" + chain + " = 1}\n",
      "x = [1, {" + chain + " = 1}]\n",
      "x = [\"\"\"a\"\"\"\"\", {" + chain + " = 1}]\n",
      "x = ['''a'''', {" + chain + " = 1}]\n",
      "x = ['\\', {" + chain + " = 1}]\n",
      "x = [\"\\\"\", {" + chain + " = 1}]\n",
  };
  for (const auto& text : texts) EXPECT_SAYS(complaint(text), "dotted parts") << text.substr(0, 40);
  // Dots elsewhere are no keys.
  std::string dots(1000, '.');
  parsed("# " + dots + "\n[log]\nprompts = [\"" + dots + "\", '" + dots + "', \"\"\"" + dots + "\n" + dots +
         "\"\"\"]\n");
}

TEST(HostileToml, HugeFiles) {
  std::string text = "# ";
  text.resize((size_t{1} << 20) - 1, 'x');
  parsed(text);
  text += "xx";
  EXPECT_SAYS(complaint(text), "at most 1048576");
  const TestFolder folder;
  const auto path = folder.write("big.toml", text);
  EXPECT_THROW(load_config(path), Error);
  // Thousands of problems are not all told.
  std::string many;
  for (int i = 0; i < 5'000; ++i) many += "k" + std::to_string(i) + " = 1\n";
  const std::string said = complaint(many);
  EXPECT_SAYS(said, "has 5000 problems");
  EXPECT_LT(said.size(), 20'000U);
}

TEST(HostileToml, InvalidUtf8) {
  for (const char* bytes : {"\xff", "\xc0\x80", "\xed\xa0\x80", "\xf0\x9f\x98", "\x80"}) {
    EXPECT_SAYS(complaint("\n[run]\nname = \"" + std::string(bytes) + "\"\n"), "line 3");
    EXPECT_SAYS(complaint("\n\n# " + std::string(bytes)), "line 3");
  }
}

TEST(HostileToml, EmbeddedNul) {
  using namespace std::string_literals;
  EXPECT_SAYS(complaint("[train]\nlr\0 = 0.5\n"s), "line 2");
  EXPECT_SAYS(complaint("[run]\nname = \"a\0b\"\n"s), "line 2");
  EXPECT_SAYS(complaint("[train]\nlr = 0.5\n\0[model]\n"s), "line 3");
  EXPECT_SAYS(complaint("# a\0\n"s), "line 1");
}

TEST(HostileToml, MessagesStayPrintableAndShort) {
  const std::string said = complaint("[train]\nlr = \"\\u001b[31m" + std::string(5000, 'x') + "\"\n\"k\\u0007\" = 1\n");
  EXPECT_LT(said.size(), 1500U);
  for (const char c : said) EXPECT_TRUE(c == '\n' || (c >= ' ' && c <= '~')) << static_cast<int>(c);
}

TEST(Toml, NumbersAndStringsReadBack) {
  for (const double x : {0.1, 1.0, 1e-8, 5e-324, 1.7976931348623157e308, 123456789.0, 1e22, -0.5}) {
    const auto value = parse_toml_value(toml_number(x));
    ASSERT_TRUE(value && value->as<double>() != nullptr) << toml_number(x);
    EXPECT_EQ(*value->as<double>(), x);
  }
  std::string all;
  for (int c = 0; c < 128; ++c) all += static_cast<char>(c);
  all += "\xE6\x9D\xB1";
  const auto value = parse_toml_value(toml_string(all));
  ASSERT_TRUE(value && value->as<std::string>() != nullptr);
  EXPECT_EQ(*value->as<std::string>(), all);
}

}  // namespace
}  // namespace mythos
