// What the commands print, and what scripts rely on in it.
#include "cli_testing.h"

#include "checkpoint/layout.h"
#include "config/run_config.h"
#include "text/tokenizer.h"

#include <cmath>

namespace mythos::testing {
namespace {

class CommandsTest : public CliTest {};

TEST_F(CommandsTest, HelpOfEveryCommandHasAnExample) {
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{{"train"},
                                                                                       {"eval"},
                                                                                       {"generate"},
                                                                                       {"inspect"},
                                                                                       {"tokenizer", "train"},
                                                                                       {"tokenizer", "encode"},
                                                                                       {"tokenizer", "decode"},
                                                                                       {"data", "inspect"}}) {
    auto arguments = command;
    arguments.emplace_back("--help");
    const Outcome o = run(arguments);
    EXPECT_EQ(o.code, 0);
    EXPECT_EQ(o.err, "");
    std::string example = "Example:\n  mythos";
    for (const auto& word : command) example += " " + word;
    EXPECT_NE(o.out.find(example), std::string::npos) << o.out;
    EXPECT_NE(o.out.find("--json"), std::string::npos) << command[0];
  }
  const Outcome all = run({"--help"});
  EXPECT_EQ(all.code, 0);
  for (const char* name : {"train", "eval", "generate", "tokenizer", "data", "inspect", "Exit codes"})
    EXPECT_NE(all.out.find(name), std::string::npos) << name;
  EXPECT_EQ(run({"--version"}).out.substr(0, 7), "mythos ");
}

TEST_F(CommandsTest, InspectGivesTheNumbersOfThePresets) {
  const Json json = json_of({"inspect", "mythos_300m", "--vocab", "199998", "--json"});
  EXPECT_EQ(json["parameters"], 339241922);
  EXPECT_NEAR(json["train_flops_per_token"].get<double>(), 2.28e9, 0.01 * 2.28e9);
  ModelConfig model = preset("mythos_300m");
  model.vocab_size = 199998;
  EXPECT_EQ(json["checkpoint_bytes"], checkpoint_bytes(model));
  EXPECT_NEAR(json["checkpoint_bytes"].get<double>(), 4.07e9, 0.01e9);
  const Outcome text = run({"inspect", "mythos_300m", "--vocab", "199998"});
  EXPECT_NE(text.out.find("339,241,922"), std::string::npos) << text.out;
}

TEST_F(CommandsTest, InspectOfConfigCheckpointAndRun) {
  const Json of_config = json_of({"inspect", config(), "--json", "--set", "model.vocab_size=320"});
  const Json of_checkpoint = json_of({"inspect", checkpoint(), "--json"});
  const Json of_run = json_of({"inspect", run_dir(), "--json"});
  for (const char* key : {"parameters", "train_flops_per_token", "checkpoint_bytes"}) {
    EXPECT_TRUE(of_config[key].is_number()) << key;
    EXPECT_TRUE(of_checkpoint[key].is_number()) << key;
    EXPECT_EQ(of_run[key], of_checkpoint[key]) << key;
  }
  EXPECT_EQ(of_config["parameters"], of_checkpoint["parameters"]);
  EXPECT_EQ(of_config["checkpoint_bytes"], of_checkpoint["checkpoint_bytes"]);
  EXPECT_EQ(of_config["steps"], 24);
  EXPECT_EQ(of_config["grad_accum"], 2);
  EXPECT_EQ(of_config["global_batch_tokens"], 64);
  EXPECT_EQ(of_checkpoint["checkpoint_bytes"], fs::file_size(checkpoint()));
  EXPECT_EQ(of_checkpoint["step"], 12);
  EXPECT_EQ(of_checkpoint["tokens"], 12 * 64);
  EXPECT_EQ(of_run["newest_verified"]["step"], 12);
  EXPECT_EQ(of_run["checkpoints"], Json({6, 12}));
  EXPECT_EQ(of_run["last_step"]["step"], 12);
  for (const std::string& target : {std::string("1b"), config(), checkpoint(), run_dir()}) {
    const Outcome o = run({"inspect", target});
    EXPECT_EQ(o.code, 0) << o.err;
    EXPECT_GT(o.out.size(), 100U);
  }
}

TEST_F(CommandsTest, EvalHasTheContractsKeys) {
  const Json json =
      json_of({"eval", checkpoint(), "--json", "--loops", "1,2,5", "--prompt", "The old", "--prompt", "A"});
  for (const char* key : {"loss", "perplexity", "bits_per_byte", "spectral_radius_max", "spectral_radius_min"})
    EXPECT_TRUE(json[key].is_number()) << key;
  ASSERT_EQ(json["by_loops"].size(), 3U);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(json["by_loops"][i]["loops"], (std::vector<int>{1, 2, 5})[i]);
    EXPECT_TRUE(json["by_loops"][i]["loss"].is_number());
    EXPECT_TRUE(json["by_loops"][i]["perplexity"].is_number());
  }
  EXPECT_EQ(json["loss"], json["by_loops"][1]["loss"]) << "trained with two loops";
  EXPECT_NEAR(json["perplexity"].get<double>(), std::exp(json["loss"].get<double>()), 1e-6);
  EXPECT_LT(json["spectral_radius_max"].get<double>(), 1);
  EXPECT_GE(json["spectral_radius_max"].get<double>(), json["spectral_radius_min"].get<double>());
  EXPECT_EQ(json["evaluated_documents"], 4);
  EXPECT_EQ(json["samples"].size(), 2U);
  // The loss that training measured at its end is this one.
  double measured = 0;
  for (const auto& line : lines_of(tiny().run() / "metrics.jsonl")) {
    const Json metrics = Json::parse(line);
    if (metrics.contains("held_out")) measured = metrics["held_out"]["loss"];
  }
  EXPECT_NEAR(json["loss"].get<double>(), measured, 1e-5);
  EXPECT_EQ(json["experts_by_loop"].size(), 5U);
  EXPECT_EQ(json["halting"]["halts_in_loop"].size(), 5U);
  for (const char* key : {"loss_standard_error", "bits_per_byte_standard_error", "accuracy", "accuracy_standard_error"})
    EXPECT_GT(json[key].get<double>(), 0) << key;
  EXPECT_EQ(json["standard_errors_by"], "document");
  double channels = 0;
  for (const Json& n : json["spectral_radius_histogram"]["counts"]) channels += n.get<double>();
  EXPECT_EQ(channels, 16);
  const Outcome text = run({"eval", run_dir()});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_TRUE(text.out.starts_with("checkpoint   step 12, "));
  for (const char* part : {"rho(A)", "perplexity", "bits per byte", "top-1", "halting", "experts", "(trained with)"})
    EXPECT_NE(text.out.find(part), std::string::npos) << text.out;
}

TEST_F(CommandsTest, EvalTasksPromptsAndPage) {
  const std::string task = (folder_ / "task.jsonl").string(), prompts = (folder_ / "prompts.txt").string();
  write_text(task, R"({"question": "The old river", "choices": ["finds the stone", "7 7 7"], "answer": 0}
{"question": "The king", "choices": ["opens", "leaves", "the"], "answer": 1}
)");
  write_text(prompts, "The <old>\n\n  \r\nA ship\r\n");
  const std::string page = (folder_ / "page.html").string();
  const std::vector<std::string> arguments = {"eval",      checkpoint(), "--task", task,       "--task",
                                              task,        "--loops",    "1,3",    "--prompt", "The bird",
                                              "--prompts", prompts,      "--html", page};
  auto with_json = arguments;
  with_json.emplace_back("--json");
  const Json json = json_of(with_json);
  ASSERT_EQ(json["tasks"].size(), 2U);
  EXPECT_EQ(json["tasks"][0]["questions"], 2);
  EXPECT_NEAR(json["tasks"][0]["chance"].get<double>(), (0.5 + 1.0 / 3) / 2, 1e-12);
  EXPECT_EQ(json["tasks"][0]["loops"], 2) << "what it was trained with";
  EXPECT_EQ(json["tasks"][0]["by_loops"][1]["loops"], 3);
  ASSERT_EQ(json["samples"].size(), 3U);
  EXPECT_EQ(json["samples"][1]["prompt"], "The <old>");
  EXPECT_EQ(json["samples"][2]["prompt"], "A ship");
  const std::string html = read_file(page);
  EXPECT_NE(html.find("The &lt;old&gt;"), std::string::npos);
  EXPECT_NE(html.find("</html>"), std::string::npos);
  const Outcome text = run(arguments);
  EXPECT_EQ(text.code, 0) << text.err;
  for (const char* part : {"task.jsonl: 2 questions", "acc_norm", "sample       A ship|"})
    EXPECT_NE(text.out.find(part), std::string::npos) << text.out;
  const Json one = json_of({"eval", checkpoint(), "--task", task, "--questions", "1", "--loops", "1", "--json"});
  EXPECT_EQ(one["tasks"][0]["questions"], 1);
}

TEST_F(CommandsTest, EvalOnOtherText) {
  write_text(folder_ / "other.jsonl", "{\"body\": \"The old river finds the stone.\"}\n{\"body\": \"The third.\"}\n");
  const std::string other = (folder_ / "other.jsonl").string();
  const Json all = json_of({"eval", checkpoint(), "--data", other, "--text-column", "body", "--json"});
  EXPECT_EQ(all["evaluated_documents"], 2);
  const Json one =
      json_of({"eval", checkpoint(), "--data", other, "--text-column", "body", "--documents", "1", "--json"});
  EXPECT_EQ(one["evaluated_documents"], 1);
  EXPECT_EQ(one["evaluated_bytes"], 30 + 2);
}

TEST_F(CommandsTest, GenerateRepeatsItselfAndStreams) {
  const std::vector<std::string> base = {"generate", checkpoint(), "The old river", "--max-new-tokens", "12"};
  const auto with = [&](std::vector<std::string> more) {
    auto a = base;
    a.insert(a.end(), more.begin(), more.end());
    return run(a);
  };
  const Outcome a = with({"--seed", "5", "--temperature", "1.3"});
  EXPECT_EQ(a.code, 0) << a.err;
  EXPECT_EQ(a.out, with({"--seed", "5", "--temperature", "1.3"}).out);
  EXPECT_NE(a.out, with({"--seed", "6", "--temperature", "1.3"}).out);
  EXPECT_EQ(with({"--temperature", "0"}).out, with({"--temperature", "0", "--seed", "9"}).out);
  EXPECT_EQ(with({"--loops", "7"}).code, 0);
  EXPECT_EQ(with({"--dtype", "bfloat16"}).code, 0);
  auto json = base;
  json.insert(json.end(), {"--json", "--seed", "5", "--temperature", "1.3"});
  const Json j = json_of(json);
  EXPECT_EQ(j["ids"].size(), 12U);
  EXPECT_EQ(Tokenizer::load(tokenizer()).decode(j["ids"].get<std::vector<int32_t>>()) + "\n", a.out);
  const Outcome nothing = run({"generate", checkpoint(), "The", "--max-new-tokens", "0"});
  EXPECT_EQ(nothing.code, 0);
  EXPECT_EQ(nothing.out, "");
  for (const char* prompt : {"", "\n", " "}) {
    const Outcome o = run({"generate", run_dir(), prompt, "--max-new-tokens", "3"});
    EXPECT_EQ(o.code, 0) << o.err;
  }
}

TEST_F(CommandsTest, GenerateEndsWellWhenNobodyReads) {
  Program::Options options;
  options.program = "/bin/sh";
  const std::string command =
      fmt::format("{{ \"{}\" generate \"{}\" The --max-new-tokens 60; echo $? >\"{}\"; }} | head -c 1", MYTHOS_BINARY,
                  checkpoint(), (folder_ / "code").string());
  const Outcome o = run({"-c", command}, options);
  EXPECT_EQ(o.code, 0);
  EXPECT_EQ(o.out.size(), 1U);
  const std::string code = read_file(folder_ / "code");
  EXPECT_TRUE(code == "0\n" || code == "1\n") << code;
  for (const char* crash : {"terminate", "Aborted", "core"}) EXPECT_EQ(o.err.find(crash), std::string::npos) << o.err;
}

TEST_F(CommandsTest, AFullStandardOutputIsAnError) {
  Program::Options options;
  options.program = "/bin/sh";
  for (const std::string& command : std::vector<std::string>{
           "inspect mythos_300m --json", "inspect mythos_300m", "generate '" + checkpoint() + "' The",
           "tokenizer encode --tokenizer '" + tokenizer() + "' text"}) {
    const Outcome o = run({"-c", fmt::format("exec \"{}\" {} >/dev/full", MYTHOS_BINARY, command)}, options);
    EXPECT_EQ(o.code, 1) << command << o.err;
    EXPECT_NE(o.err.find("error: cannot write to standard output"), std::string::npos) << o.err;
  }
}

TEST_F(CommandsTest, TokenizersAreTrainedAndUsed) {
  const std::string file = (folder_ / "t.json").string();
  const Json made = json_of({"tokenizer", "train", tiny().text(), "--vocab", "400", "--out", file, "--json"});
  EXPECT_EQ(made["tokens"], 400);
  const std::string text = "The caf\u00e9's 3rd r\u00edver:\n\ttabs, \U0001F600 and <|endoftext|>.";
  const Json ids = json_of({"tokenizer", "encode", "--tokenizer", file, text, "--json"})["ids"];
  EXPECT_EQ(ids, Json(Tokenizer::load(file).encode(text)));
  const Outcome plain = run({"tokenizer", "encode", "--tokenizer", file, text});
  std::vector<std::string> decode = {"tokenizer", "decode", "--tokenizer", file};
  std::string joined_ids;
  for (const auto& id : ids) {
    decode.push_back(id.dump());
    joined_ids += (joined_ids.empty() ? "" : " ") + id.dump();
  }
  EXPECT_EQ(plain.out, joined_ids + "\n");
  EXPECT_EQ(run(decode).out, text);
  EXPECT_EQ(with_input({"tokenizer", "decode", "--tokenizer", file}, ids.dump()).out, text);
  EXPECT_EQ(with_input({"tokenizer", "encode", "--tokenizer", file}, text).out, plain.out);
  // T7, T8: bytes that are no text come back as they are.
  const std::string bytes("foo\0bar \xED\xA0\xBD \xFF\xFE \xC0\x80 \xF0\x9F\x98", 22);
  const Outcome raw = with_input({"tokenizer", "encode", "--tokenizer", file}, bytes);
  EXPECT_EQ(with_input({"tokenizer", "decode", "--tokenizer", file}, raw.out).out, bytes);
}

TEST_F(CommandsTest, EncodingJsonLinesNamesTheLineThatIsBad) {
  const Tokenizer t = Tokenizer::load(tokenizer());
  const std::vector<std::string> command = {"tokenizer", "encode", "--tokenizer", tokenizer(), "--json-lines"};
  const Outcome good =
      with_input(command, "{\"text\": \"The old river\"}\n\n{\"text\": \"\"}\n{\"text\":\"\\ud83d\\ude00\"}");
  EXPECT_EQ(good.code, 0) << good.err;
  const auto line = [&](const std::string& text) {
    std::string out = "{\"ids\":[";
    const char* comma = "";
    for (const int32_t id : t.encode(text)) {
      out += comma + std::to_string(id);
      comma = ",";
    }
    return out + "]}\n";
  };
  EXPECT_EQ(good.out, line("The old river") + line("") + line("\U0001F600"));
  for (const char* bad : {"{\"text\": 3}", "{\"text\": \"x\"", "nonsense", "{\"other\": \"x\"}"}) {
    const Outcome o =
        with_input(command, "{\"text\": \"a\"}\n{\"text\": \"b\"}\n" + std::string(bad) + "\n{\"text\": \"c\"}\n");
    EXPECT_EQ(o.code, 1);
    EXPECT_NE(o.err.find("error: line 3:"), std::string::npos) << o.err;
    EXPECT_EQ(o.out, line("a") + line("b")) << "those before it are there";
  }
}

TEST_F(CommandsTest, DataInspectDescribesASource) {
  const Json json = json_of({"data", "inspect", tiny().text(), "--tokenizer", tokenizer(), "--json"});
  EXPECT_GT(json["documents"].get<int64_t>(), 1000);
  EXPECT_EQ(json["files"], 1);
  EXPECT_EQ(run({"data", "inspect", tiny().text()}).code, 0);
}

TEST_F(CommandsTest, BenchOpsGivesEachFigureWithItsLimit) {
  const Json json = json_of({"bench", "ops", "--preset", "mythos_300m", "--vocab", "64", "--seq-len", "4", "--seconds",
                             "0", "--filter", "norm", "--json"});
  ASSERT_EQ(json["ops"].size(), 2U);
  for (const auto& op : json["ops"]) {
    EXPECT_NE(op["name"].get<std::string>().find("norm"), std::string::npos);
    EXPECT_EQ(op["unit"], "B/s");
    EXPECT_GT(op["limit"].get<double>(), 0);
    for (const char* pass : {"forward", "forward_backward"}) {
      for (const char* key : {"ms", "composite_ms", "ratio", "rate", "fraction_of_limit"}) {
        EXPECT_GT(op[pass][key].get<double>(), 0) << pass << " " << key;
      }
    }
  }
  EXPECT_EQ(json["seq_len"], 4);
  EXPECT_EQ(json["model"]["vocab_size"], 64);
  const Outcome wrong = run({"bench", "ops", "--filter", "embeding"});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_NE(wrong.err.find("did you mean 'embedding'?"), std::string::npos) << wrong.err;
}

TEST_F(CommandsTest, TrainingSaysWhatWasDecidedAndLeavesItsFiles) {
  const std::string text = read_file(tiny().run() / "log.txt");
  for (const char* what :
       {"device", "matmul", "threads", "model", "batch", "work", "schedule", "checkpoints", "memory"})
    EXPECT_NE(text.find(what), std::string::npos) << what;
  const RunConfig again = load_config(tiny().run() / "config.toml");
  EXPECT_EQ(again.train.steps, 12);
  EXPECT_EQ(again.model.vocab_size, 320);
  EXPECT_EQ(again.run.dir, run_dir());
}

}  // namespace
}  // namespace mythos::testing
