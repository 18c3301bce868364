#include "config/run_config.h"

#include "config/batch_plan.h"
#include "files.h"
#include "parsing.h"

#include <clocale>
#include <locale>

namespace mythos {
namespace {

TEST(RunConfig, DefaultsOfAnEmptyFile) {
  const RunConfig c = parsed("");
  EXPECT_EQ(c.preset, "");
  EXPECT_EQ(c.model, ModelConfig{});
  EXPECT_FALSE(c.vocab_size);
  EXPECT_EQ(c.data.lanes, 16);
  EXPECT_EQ(c.data.text_column, "text");
  EXPECT_EQ(c.train.lr, 6e-4);
  EXPECT_EQ(c.train.min_lr_ratio, 0.1);
  EXPECT_EQ(c.train.warmup_steps, 300);
  EXPECT_EQ(c.train.clip, 1.0);
  EXPECT_TRUE(c.train.decay_norms);
  EXPECT_EQ(c.train.loops, std::vector<int64_t>{16});  // the model's max_loop_iters
  EXPECT_EQ(c.run.name, "test");
  EXPECT_EQ(c.run.dir, "runs/test");
  EXPECT_EQ(c.checkpoint.dir, "runs/test/checkpoints");
}

TEST(RunConfig, PresetComesBeforeTheFieldsWhateverTheOrder) {
  const RunConfig c = parsed("[model]\ndim = 512\nn_experts = 8\npreset = \"300m\"\n");
  ModelConfig expected = preset("mythos_300m");
  expected.dim = 512;
  expected.n_experts = 8;
  EXPECT_EQ(c.model, expected);
  EXPECT_EQ(c.train.loops, std::vector<int64_t>{8});
  EXPECT_EQ(parsed("[model]\ndim = 512\nn_experts = 8\n", {"model.preset=mythos_300m"}).model, expected);
}

TEST(RunConfig, SequenceLengthFollowsAShortModel) {
  EXPECT_EQ(parsed("[model]\nmax_seq_len = 128\n").train.seq_len, 128);
  EXPECT_EQ(parsed("[model]\nmax_seq_len = 4096\n").train.seq_len, 2048);
}

TEST(RunConfig, EveryKindOfValue) {
  const RunConfig c = parsed(R"(
[data]
source = ["a.txt", "b.jsonl"]
weights = [1, 0.5]
shuffle = true
[train]
micro_batch = "auto"
betas = [0.8, 0.99]
loops = { choices = [4, 8] }
target_tokens = 3e9
lr = 1
[log]
prompts = ["The capital of Japan is", ""]
)");
  EXPECT_EQ(c.data.source, (std::vector<std::string>{"a.txt", "b.jsonl"}));
  EXPECT_EQ(c.data.weights, (std::vector<double>{1.0, 0.5}));
  EXPECT_TRUE(c.data.shuffle);
  EXPECT_EQ(c.train.micro_batch, 0);
  EXPECT_EQ(c.train.betas, (std::vector<double>{0.8, 0.99}));
  EXPECT_EQ(c.train.loops, (std::vector<int64_t>{4, 8}));
  EXPECT_EQ(c.train.target_tokens, 3'000'000'000);
  EXPECT_EQ(c.train.lr, 1.0);
  EXPECT_EQ(c.log.prompts.size(), 2U);
  EXPECT_EQ(parsed("[data]\nsource = \"one\"\n").data.source, std::vector<std::string>{"one"});
  EXPECT_EQ(parsed("[train.loops]\nchoices = [2]\n").train.loops, std::vector<int64_t>{2});
}

TEST(RunConfig, FileNameNamesTheRun) {
  const TestFolder folder;
  const auto path = folder.write("night run.toml", "[train]\nsteps = 10\n");
  const RunConfig c = load_config(path);
  EXPECT_EQ(c.run.name, "night run");
  EXPECT_EQ(c.run.dir, "runs/night run");
  const std::vector<std::string> overrides = {"run.dir=/data/x"};
  EXPECT_EQ(load_config(path, overrides).checkpoint.dir, "/data/x/checkpoints");
}

TEST(RunConfig, MissingFileIsAUsageError) {
  const TestFolder folder;
  for (const auto& path : {folder.path() / "none.toml", folder.path()}) {
    try {
      load_config(path);
      FAIL() << "read " << path;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::usage);
      EXPECT_SAYS(std::string(e.what()), path.string());
    }
  }
}

TEST(Overrides, AreTomlOrElseText) {
  const std::string text = "[train]\nmicro_batch = 2\n";
  EXPECT_EQ(parsed(text, {"train.micro_batch=3"}).train.micro_batch, 3);
  EXPECT_EQ(parsed(text, {"train.micro_batch=auto"}).train.micro_batch, 0);
  EXPECT_EQ(parsed(text, {"train.micro_batch=\"auto\""}).train.micro_batch, 0);
  EXPECT_EQ(parsed(text, {"train.micro_batch=3", "train.micro_batch=4"}).train.micro_batch, 4);
  EXPECT_EQ(parsed(text, {" train.micro_batch = 5 "}).train.micro_batch, 5);
  EXPECT_EQ(parsed(text, {"train.loops={choices=[2,4]}"}).train.loops, (std::vector<int64_t>{2, 4}));
  EXPECT_EQ(parsed(text, {"data.source=data/a.txt"}).data.source, std::vector<std::string>{"data/a.txt"});
  EXPECT_EQ(parsed(text, {"data.source=[\"a\",\"b\"]"}).data.source, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(parsed(text, {"train.target_tokens=1e6"}).train.target_tokens, 1'000'000);
  EXPECT_EQ(parsed(text, {"tokenizer.path=a=b"}).tokenizer.path, "a=b");
}

TEST(Overrides, TextKeysTakeAnyValueAsItStands) {
  EXPECT_EQ(parsed("", {"run.name=300"}).run.name, "300");
  EXPECT_EQ(parsed("", {"run.name=2024-05-27"}).run.name, "2024-05-27");
  EXPECT_EQ(parsed("", {"run.name=1e3"}).run.name, "1e3");
  EXPECT_EQ(parsed("", {"run.name=\"quoted\""}).run.name, "quoted");
  EXPECT_EQ(parsed("", {"data.source=true"}).data.source, std::vector<std::string>{"true"});
}

TEST(Overrides, CannotSmuggleOtherKeys) {
  const RunConfig c = parsed("", {"run.notify=1\nother = 2"});
  EXPECT_EQ(c.run.notify, "1\nother = 2");
  EXPECT_EQ(c, parsed("", {"run.notify=\"1\\nother = 2\""}));
}

TEST(Overrides, ProblemsNameTheOption) {
  const std::string said =
      complaint("[train]\nlr = 0.1\n", {"train.lr=fast", "trian.lr=1", "nonsense", "train.stesp=5"});
  EXPECT_SAYS(said, "--set train.lr: train.lr is the text \"fast\", it must be a number above 0 and at most 1");
  EXPECT_SAYS(said, "--set trian.lr: 'trian' is not a section (did you mean 'train'?)");
  EXPECT_SAYS(said, "--set nonsense: an override is written section.key=VALUE");
  EXPECT_SAYS(said, "--set train.stesp: train.stesp is not a key (did you mean 'steps'?)");
}

TEST(Overrides, ReplaceABadValueOfTheFile) {
  EXPECT_EQ(parsed("[train]\nlr = \"x\"\n", {"train.lr=0.5"}).train.lr, 0.5);
}

TEST(RunConfig, WrittenAndReadBackIsEqual) {
  const std::vector<std::string> texts = {
      "",
      "[model]\npreset = \"mythos_10b\"\nvocab_size = 201088\n",
      "[model]\nattn_type = \"gqa\"\nact_threshold = 0.1\nrope_theta = 12345.678901234567\n",
      "[train]\nlr = 1e-300\neps = 5e-324\nbetas = [0, 0.1]\nloops = {choices = [1, 2, 3]}\nmicro_batch = 7\nseed = "
      "9223372036854775807\n",
      "[data]\nsource = ['a \"b\" \\c', \"x\\ty\\n\", \"\\u00e9\\u6771\"]\nweights = [1, 2, 0.30000000000000004]\n",
      "[log]\nprompts = [\"\", \"\\u0000\\u0007\\u007f\", \"'\", \"\\\"\"]\n[run]\nnotify = \"mail -s 'x' me # no\"\n",
  };
  for (const auto& text : texts) {
    const RunConfig first = parsed(text);
    const std::string toml = to_toml(first);
    const RunConfig second = parse_config(toml, "resolved", "another name");
    EXPECT_EQ(first, second) << toml;
    EXPECT_EQ(toml, to_toml(second));
    EXPECT_TRUE(diff(first, second).empty());
  }
}

TEST(RunConfig, VocabularyComesFromTheTokenizerUnlessGiven) {
  RunConfig free = parsed("[model]\npreset = \"300m\"\n");
  free.resolve_vocab(199998);
  EXPECT_EQ(free.model.vocab_size, 199998);
  EXPECT_EQ(parsed(to_toml(free)), free);

  RunConfig padded = parsed("[model]\nvocab_size = 201088\n");
  padded.resolve_vocab(199998);
  EXPECT_EQ(padded.model.vocab_size, 201088);

  RunConfig small = parsed("[model]\nvocab_size = 100\n");
  try {
    small.resolve_vocab(101);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::usage);
    EXPECT_SAYS(e.line(), "100");
    EXPECT_SAYS(e.line(), "101");
  }
  RunConfig absurd = parsed("");
  EXPECT_THROW(absurd.resolve_vocab(int64_t{1} << 40), Error);
  EXPECT_THROW(absurd.resolve_vocab(0), Error);
}

TEST(RunConfig, TrainingNeedsInputsAndALength) {
  try {
    require_training_inputs(parsed(""));
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::usage);
    EXPECT_SAYS(e.line(), "tokenizer.path");
    EXPECT_SAYS(e.line(), "data.source");
    EXPECT_SAYS(e.line(), "train.target_tokens");
  }
  require_training_inputs(parsed("[tokenizer]\npath = \"t\"\n[data]\nsource = \"s\"\n[train]\nsteps = 1\n"));
}

TEST(RunConfig, CheckpointsGoToAFolderOrToS3) {
  EXPECT_EQ(parsed("[checkpoint]\ndir = \"s3://bucket/runs/x\"\n").checkpoint.dir, "s3://bucket/runs/x");
  EXPECT_EQ(parsed("[checkpoint]\ndir = \"/data/a:b//c\"\n").checkpoint.dir, "/data/a:b//c");
  for (const char* dir :
       {"s3://", "s3:///x", "s3://user:secret@host/x", "gs://bucket/x", "hf://own/x", "https://a/b"}) {
    const std::string said = complaint(std::string("[checkpoint]\ndir = \"") + dir + "\"\n");
    EXPECT_SAYS(said, "line 2: checkpoint.dir is '");
    EXPECT_SAYS(said, "s3://BUCKET/PREFIX");
  }
}

TEST(RunConfig, WarnsOfWhatIsRarelyMeant) {
  EXPECT_TRUE(warnings(parsed("[train]\nsteps = 1000\n")).empty());
  const auto said = [](std::string_view text) { return ::testing::PrintToString(warnings(parsed(text))); };
  EXPECT_SAYS(said("[train]\nsteps = 20\n"), "never reaches its peak");
  EXPECT_SAYS(said("[train]\nsteps = 2000\ntarget_tokens = 3e9\n"), "target_tokens 3,000,000,000 does not");
  EXPECT_SAYS(said("[train]\nmicro_batch = 8\nglobal_batch_tokens = 4096\n"), "a step takes it all");
  EXPECT_SAYS(said("[log]\neval_every = 5\n"), "held-out");
  EXPECT_SAYS(said("[log]\nsample_every = 5\n"), "log.prompts is empty");
  EXPECT_SAYS(said("[cost]\nbudget = 100\n"), "price_per_hour");
  EXPECT_SAYS(said("[checkpoint]\nkeep_every = 300\n"), "multiple");
}

TEST(BatchPlan, MicroBatchThreeIsTheArticlesRun) {
  TrainSection t;
  t.global_batch_tokens = 524288;
  t.target_tokens = 3'000'000'000;
  EXPECT_EQ(batch_plan(t, 3), (BatchPlan{3, 85, 522240, 5744}));
  EXPECT_EQ(batch_plan(t, 3).tokens(), 2999746560);
}

TEST(BatchPlan, MicroBatchTwoDividesExactly) {
  TrainSection t;
  t.global_batch_tokens = 524288;
  t.target_tokens = 3'000'000'000;
  EXPECT_EQ(batch_plan(t, 2), (BatchPlan{2, 128, 524288, 5722}));
  EXPECT_EQ(batch_plan(t, 2, 8), (BatchPlan{2, 16, 524288, 5722}));
}

TEST(BatchPlan, WithoutAGlobalBatchAStepIsOneMicroBatch) {
  TrainSection t;
  t.seq_len = 128;
  t.target_tokens = 1000;
  EXPECT_EQ(batch_plan(t, 2), (BatchPlan{2, 1, 256, 3}));
  t.global_batch_tokens = 200;  // less than one micro-batch: still one
  EXPECT_EQ(batch_plan(t, 2), (BatchPlan{2, 1, 256, 3}));
  t.steps = 10;
  EXPECT_EQ(batch_plan(t, 2).steps, 10);
  EXPECT_EQ(batch_plan(TrainSection{}, 1).steps, 0);
}

TEST(BatchPlan, RefusesWhatCannotBe) {
  TrainSection t;
  t.target_tokens = 2047;
  EXPECT_THROW(batch_plan(t, 1), Error);
  t.target_tokens = 2048;
  EXPECT_EQ(batch_plan(t, 1).steps, 1);
  EXPECT_THROW(batch_plan(t, 0), Error);
  EXPECT_THROW(batch_plan(t, -3), Error);
  EXPECT_THROW(batch_plan(t, 1, 0), Error);
  EXPECT_THROW(batch_plan(t, 65536, 65536), Error);
  t.seq_len = int64_t{1} << 24;
  EXPECT_THROW(batch_plan(t, 65536, int64_t{1} << 20), Error);
}

// R2: what changes when a run goes on with another configuration, and which changes move the learning rate.
TEST(Diff, R2NamesKeysValuesAndBearing) {
  const RunConfig a = parsed("[train]\nsteps = 100\nlr = 6e-4\n[data]\nsource = \"a\"\n");
  const RunConfig b = parsed(
      "[model]\ndim = 1024\n[train]\nsteps = 200\nlr = 3e-4\nmicro_batch = 2\nclip = 2\nthreads = 4\nseq_len = 1024\n"
      "[data]\nsource = [\"a\", \"b\"]\n");
  std::vector<std::string> seen;
  for (const auto& d : diff(a, b)) {
    seen.push_back(d.key + " " + d.a + " -> " + d.b + " " + std::string(to_string(d.bearing)));
  }
  const std::vector<std::string> expected = {
      "model.dim 2048 -> 1024 model",        "data.source \"a\" -> [\"a\", \"b\"] data",
      "train.seq_len 2048 -> 1024 schedule", "train.micro_batch \"auto\" -> 2 batch",
      "train.steps 100 -> 200 schedule",     "train.lr 0.0006 -> 0.0003 schedule",
      "train.clip 1.0 -> 2.0 optimizer",     "train.threads 0 -> 4 nothing"};
  EXPECT_EQ(seen, expected);
}

TEST(Diff, SaysUnsetForAVocabularyOfTheTokenizer) {
  const auto d = diff(parsed(""), parsed("[model]\nvocab_size = 300\n"));
  ASSERT_EQ(d.size(), 1U);
  EXPECT_EQ(d[0].a, "unset");
  EXPECT_EQ(d[0].b, "300");
}

// A locale with a comma for the decimal point must change nothing.
TEST(RunConfig, NumbersAreAlikeInEveryLocale) {
  struct Comma : std::numpunct<char> {
    char do_decimal_point() const override { return ','; }
    char do_thousands_sep() const override { return '.'; }
    std::string do_grouping() const override { return "\3"; }
  };
  const std::string text = "[train]\nlr = 0.00125\ntarget_tokens = 3e9\n[model]\nrope_theta = 1234567.5\n";
  const std::string plain = to_toml(parsed(text));
  const std::string said = complaint("[train]\nlr = 1234567.25\n");
  const std::locale before = std::locale::global(std::locale(std::locale::classic(), new Comma));
  for (const char* name : {"de_DE.UTF-8", "fr_FR.UTF-8", "de_DE"}) {
    if (std::setlocale(LC_ALL, name) != nullptr) break;
  }
  EXPECT_EQ(to_toml(parsed(text)), plain);
  EXPECT_EQ(complaint("[train]\nlr = 1234567.25\n"), said);
  std::locale::global(before);
  std::setlocale(LC_ALL, "C");
}

TEST(ShippedConfigs, Mythos300mIsTheArticlesRun) {
  const RunConfig c = load_config(std::string(MYTHOS_TEST_DIR) + "/../configs/mythos_300m.toml");
  EXPECT_EQ(c.run.name, "mythos_300m");
  ModelConfig model = preset("mythos_300m");
  model.vocab_size = 199998;
  EXPECT_EQ(c.model, model);
  EXPECT_EQ(parameter_count(c.model), 339'241'922);
  EXPECT_EQ(batch_plan(c.train, c.train.micro_batch), (BatchPlan{3, 85, 522240, 5744}));
  EXPECT_EQ(c.train.lr, 6e-4);
  EXPECT_EQ(c.train.warmup_steps, 300);
  EXPECT_EQ(c.train.loops, std::vector<int64_t>{8});
  EXPECT_EQ(c.checkpoint.every, 200);
  EXPECT_EQ(c.checkpoint.keep_last, 3);
  EXPECT_EQ(c.log.every, 10);
  EXPECT_EQ(c.data.source, std::vector<std::string>{"hf://datasets/HuggingFaceFW/fineweb-edu/sample/10BT"});
  EXPECT_EQ(c.tokenizer.path, "hf://openai/gpt-oss-20b");
  require_training_inputs(c);
  EXPECT_TRUE(warnings(c).empty());
}

}  // namespace
}  // namespace mythos
