// Whatever is wrong: one sentence on stderr, the right exit code, and no file changed.
#include "cli_testing.h"

namespace mythos::testing {
namespace {

class BadInputTest : public CliTest {
 protected:
  /// Runs it and checks that it fails as it should; gives back the one line.
  std::string refused(const std::vector<std::string>& arguments, int code, const std::vector<std::string>& says) {
    const auto run_before = snapshot(tiny().folder());
    const auto before = snapshot(folder_.path());
    Program::Options options;
    options.working_folder = folder_.path();
    const Outcome o = run(arguments, options);
    EXPECT_EQ(o.code, code) << o.err;
    EXPECT_EQ(o.out, "");
    std::vector<std::string> errors;
    for (size_t begin = 0; begin < o.err.size();) {
      const size_t end = std::min(o.err.find('\n', begin), o.err.size());
      const std::string line = o.err.substr(begin, end - begin);
      if (line.starts_with("error: ")) errors.push_back(line);
      begin = end + 1;
    }
    EXPECT_EQ(errors.size(), 1U) << o.err;
    const std::string line = errors.empty() ? o.err : errors.front();
    EXPECT_TRUE(o.err.ends_with(line + "\n")) << "more after the error: " << o.err;
    for (const auto& text : says) EXPECT_NE(line.find(text), std::string::npos) << text << " is not in: " << line;
    EXPECT_EQ(snapshot(folder_.path()), before) << line;
    EXPECT_EQ(snapshot(tiny().folder()), run_before) << line;
    return line;
  }
  std::vector<std::string> training(const std::vector<std::string>& overrides) {
    std::vector<std::string> arguments = {"train", config(), "--set", "run.dir=" + (folder_ / "new").string()};
    for (const auto& o : overrides) arguments.insert(arguments.end(), {"--set", o});
    return arguments;
  }
  std::string file(const std::string& name, const std::string& text) {
    write_text(folder_ / name, text);
    return (folder_ / name).string();
  }
};

TEST_F(BadInputTest, MissingFiles) {
  refused({"train", "none.toml"}, 2, {"none.toml"});
  refused({"inspect", "none.toml"}, 2, {"none.toml"});
  refused({"inspect", "some/none.safetensors"}, 2, {"there is no some/none.safetensors"});
  refused({"eval", "none.safetensors"}, 2, {"there is no checkpoint at none.safetensors"});
  refused({"generate", "none.safetensors", "x"}, 2, {"there is no checkpoint at none.safetensors"});
  refused({"eval", checkpoint(), "--data", "none.txt"}, 2, {"none.txt"});
  refused({"tokenizer", "train", "none.txt", "--out", "t.json"}, 2, {"none.txt"});
  refused({"data", "inspect", "none.txt"}, 2, {"none.txt"});
  refused(training({"data.source=none.txt"}), 2, {"none.txt"});
  const auto line = refused(training({"tokenizer.path=none.json"}), 1, {"none.json", "No such file"});
  refused({"tokenizer", "encode", "--tokenizer", "none.json", "x"}, 1, {"none.json"});
}

TEST_F(BadInputTest, EmptyAndShortCorpora) {
  const std::string empty = file("empty.txt", "");
  refused(training({"data.source=" + empty, "data.validation_documents=0"}), 2, {"empty.txt"});
  refused({"tokenizer", "train", empty, "--out", "t.json"}, 2, {"empty.txt"});
  const std::string blank = file("blank.txt", "\n\n  \n\n");
  refused(training({"data.source=" + blank, "data.validation_documents=0"}), 2, {"blank.txt"});
  const std::string short_text = file("short.txt", "Only this.\n");
  refused(training({"data.source=" + short_text, "data.validation_documents=0"}), 2,
          {"short.txt", "less than one row of 17"});
  refused(training({"data.source=" + short_text, "data.validation_documents=9"}), 2, {"data.validation_documents"});
  fs::create_directories(folder_ / "nothing");
  refused({"data", "inspect", (folder_ / "nothing").string()}, 2, {"nothing"});
}

TEST_F(BadInputTest, ConfigurationsThatCannotBe) {
  refused(training({"train.lerning_rate=1"}), 2, {"lerning_rate", "lr"});
  refused(training({"data.batch_size=4"}), 2, {"data.batch_size", "micro_batch"});
  refused(training({"train.lr=2"}), 2, {"train.lr", "2"});
  refused(training({"train.seq_len=0"}), 2, {"train.seq_len"});
  refused(training({"model.n_heads=12", "model.attn_type=gqa"}), 2, {"n_heads", "dim"});
  refused(training({"model.qk_rope_head_dim=3"}), 2, {"qk_rope_head_dim", "3"});
  refused(training({"model.attn_type=gqa", "model.dim=18", "model.n_heads=2", "model.n_kv_heads=1"}), 2, {"dim"});
  refused(training({"train.seq_len=65", "train.global_batch_tokens=130"}), 2, {"65", "64"});
  refused(training({"model.vocab_size=100"}), 2, {"model.vocab_size is 100", "320"});
  refused(training({"data.workers=17"}), 2, {"data.workers", "data.lanes"});
  refused(training({"train.steps=0"}), 2, {"train.steps"});
  refused({"train", config(), "--steps", "0"}, 2, {"--steps", "1"});
  refused({"train", config(), "--steps", "many"}, 2, {"many"});
  refused({"train", config(), "--set", "nonsense"}, 2, {"section.key=VALUE"});
  const std::string broken = file("broken.toml", "[train]\nlr = \n");
  refused({"train", broken}, 2, {"broken.toml", "2"});
  refused(training({"train.device=cuda"}), 2, {"cuda"});
  refused(training({"train.dtype=float64"}), 2, {"float64"});
}

TEST_F(BadInputTest, ManyProblemsAreToldAtOnce) {
  const Outcome o = run(training({"train.lr=2", "train.seq_len=0", "data.lanes=x"}));
  EXPECT_EQ(o.code, 2);
  for (const char* key : {"train.lr", "train.seq_len", "data.lanes"}) EXPECT_NE(o.err.find(key), std::string::npos);
  EXPECT_FALSE(fs::exists(folder_ / "new"));
}

TEST_F(BadInputTest, PromptsAndTokens) {
  std::string prompt;
  for (int i = 0; i < 65; ++i) prompt += "7";
  refused({"generate", checkpoint(), prompt}, 2, {"a prompt of", "64 positions", "max_seq_len"});
  refused({"generate", checkpoint(), "x", "--max-new-tokens", "100"}, 2, {"100", "64"});
  refused({"eval", checkpoint(), "--prompt", prompt}, 2, {"64 positions"});
  refused({"generate", checkpoint(), "x", "--temperature", "-1"}, 2, {"temperature is -1"});
  refused({"generate", checkpoint(), "x", "--temperature", "nan"}, 2, {"temperature"});
  refused({"generate", checkpoint(), "x", "--top-p", "1.5"}, 2, {"top-p is 1.5"});
  refused({"generate", checkpoint(), "x", "--top-k", "-2"}, 2, {"top-k is -2"});
  refused({"generate", checkpoint(), "x", "--loops", "0"}, 2, {"--loops is 0"});
  refused({"generate", checkpoint(), "x", "--loops", "-3"}, 2, {"--loops is -3"});
  refused({"generate", checkpoint(), "x", "--max-new-tokens", "-1"}, 2, {"-1"});
  refused({"generate", checkpoint(), "x", "--dtype", "float8"}, 2, {"float8"});
  refused({"eval", checkpoint(), "--loops", "1,,2"}, 2, {"--loops"});
  refused({"eval", checkpoint(), "--loops", "0,1"}, 2, {"--loops"});
  refused({"eval", checkpoint(), "--loops", "1,99999999"}, 2, {"--loops names 99999999"});
  refused({"tokenizer", "decode", "--tokenizer", tokenizer(), "320"}, 2, {"id 320", "320 ids"});
  refused({"tokenizer", "decode", "--tokenizer", tokenizer(), "99999999999999999999"}, 2, {});
  refused({"tokenizer", "train", tiny().text(), "--vocab", "100", "--out", "t.json"}, 2, {"257"});
}

TEST_F(BadInputTest, FilesOfAnEvaluation) {
  const std::string task = file("task.jsonl", "{\"question\": \"a\", \"choices\": [\"b\", \"c\"], \"answer\": 2}\n");
  refused({"eval", checkpoint(), "--task", task}, 2, {"task.jsonl:1: 'answer' is 2"});
  refused({"eval", checkpoint(), "--task", file("nothing.jsonl", "\n")}, 2, {"nothing.jsonl has no question"});
  refused({"eval", checkpoint(), "--task", "none.jsonl"}, 2, {"no task file none.jsonl"});
  refused({"eval", checkpoint(), "--prompts", "none.txt"}, 2, {"none.txt"});
  refused({"eval", checkpoint(), "--prompts", file("blank.txt", " \n")}, 2, {"blank.txt has no prompt"});
  refused({"eval", checkpoint(), "--prompts", file("long.txt", "The\n" + std::string(65, '7') + "\n")}, 2,
          {"long.txt:2: a prompt of", "64 positions"});
  refused({"eval", checkpoint(), "--html", "none/page.html"}, 2, {"none/page.html", "no folder none"});
  refused({"eval", checkpoint(), "--html", "."}, 2, {"is a folder"});
}

TEST_F(BadInputTest, CheckpointsThatAreDamagedOrOfSomethingElse) {
  const std::string copy = (folder_ / "copy.safetensors").string();
  const auto damaged = [&](const std::function<void()>& damage, const std::string& says) {
    fs::copy_file(checkpoint(), copy, fs::copy_options::overwrite_existing);
    damage();
    for (const char* command : {"eval", "generate"}) {
      std::vector<std::string> arguments = {command, copy};
      if (arguments[0] == "generate") arguments.emplace_back("x");
      refused(arguments, 1, {"copy.safetensors", says});
    }
    refused({"train", config(), "--from", copy, "--set", "run.dir=new"}, 1, {"copy.safetensors", says});
  };
  const auto size = fs::file_size(checkpoint());
  damaged([&] { fs::resize_file(copy, size - 1); }, "");
  damaged([&] { fs::resize_file(copy, size / 2); }, "");
  damaged([&] { fs::resize_file(copy, 0); }, "");
  damaged([&] { fs::resize_file(copy, size + 1); }, "");
  damaged([&] { flip_bit(copy, size - 1000); }, "");
  damaged([&] { flip_bit(copy, 3); }, "");
  damaged([&] { flip_bit(copy, 300); }, "");
  fs::remove(copy);
  refused({"train", config(), "--steps", "12", "--set", "data.document_separator=true", "--set", "train.loops=2",
           "--set", "model.dim=32"},
          2, {"another model", "dim is 16 there, 32 here"});
  small_tokenizer(generated_documents(30'000, 5)).save(folder_ / "other.json");
  const std::string other = (folder_ / "other.json").string();
  refused({"train", config(), "--steps", "12", "--set", "data.document_separator=true", "--set", "train.loops=2",
           "--set", "tokenizer.path=" + other},
          2, {"another tokenizer"});
  refused({"generate", checkpoint(), "x", "--tokenizer", other}, 2, {"other.json", "is not the one"});
  refused({"eval", checkpoint(), "--tokenizer", other}, 2, {"other.json", "is not the one"});
  const std::string text = file("text.safetensors", "no checkpoint at all, but more than eight bytes");
  refused({"generate", text, "x"}, 1, {"text.safetensors"});
  refused({"inspect", text}, 1, {"text.safetensors"});
  fs::create_directories(folder_ / "empty");
  refused({"generate", (folder_ / "empty").string(), "x"}, 2, {"holds no checkpoint"});
  refused({"inspect", (folder_ / "empty").string()}, 2, {"neither a run nor"});
}

TEST_F(BadInputTest, FoldersThatCannotBeWritten) {
  const std::string plain = file("plain", "a file");
  refused({"train", config(), "--set", "run.dir=" + plain + "/run"}, 1, {plain});
  refused({"tokenizer", "train", tiny().text(), "--vocab", "300", "--out", plain + "/t.json"}, 1, {plain});
  refused({"tokenizer", "train", tiny().text(), "--vocab", "300", "--out", (folder_ / "none/t.json").string()}, 1,
          {"none/t.json"});
}

TEST_F(BadInputTest, UnknownCommandsAndOptionsNameTheNearest) {
  refused({"trian", config()}, 2, {"no command 'trian'", "'train'"});
  refused({"tokenizer", "encoed"}, 2, {"encoed", "'encode'"});
  refused({"train", config(), "--stepz", "5"}, 2, {"--stepz", "--steps"});
  refused({"generate", checkpoint(), "x", "--temprature=1"}, 2, {"--temprature", "--temperature"});
  refused({"tokenizer", "decode", "--tokeniser", "x"}, 2, {"--tokeniser", "--tokenizer"});
  refused({}, 2, {"command"});
  refused({"train"}, 2, {"CONFIG"});
  refused({"tokenizer"}, 2, {"command"});
  refused({"generate"}, 2, {"CHECKPOINT"});
  refused({"eval", checkpoint(), "--loops"}, 2, {"--loops"});
  refused({"inspect", "mythos_30m"}, 2, {"mythos_30m", "mythos_300m"});
  refused({"inspect", "mythos_300m", "--vocab", "-4"}, 2, {"--vocab"});
}

}  // namespace
}  // namespace mythos::testing
