// What keys must be together, and what is worth saying although it is allowed.
#include "base/error.h"
#include "base/units.h"
#include "config/batch_plan.h"
#include "config/problems.h"
#include "config/run_config.h"

#include <algorithm>

namespace mythos {

namespace {

void check_model(const RunConfig& config, Problems& found) {
  if (!found.sound({"model.preset"})) return;
  for (const auto& sentence : problems(config.model)) {
    // A sentence names the fields it is about; the first of them that was given tells the line.
    std::vector<std::string> fields;
    for (size_t at = sentence.find("model."); at != std::string::npos; at = sentence.find("model.", at + 1)) {
      const size_t end = sentence.find_first_not_of("abcdefghijklmnopqrstuvwxyz_", at + 6);
      fields.push_back(sentence.substr(at, end - at));
    }
    if (!found.sound(fields)) continue;
    fields.emplace_back("model.preset");
    found.add_among(fields, sentence);
  }
}

void check_loops(const RunConfig& config, Problems& found) {
  if (!found.sound({"train.loops", "model.max_loop_iters"})) return;
  const int64_t most = config.model.max_loop_iters;
  for (const int64_t loops : config.train.loops) {
    if (loops <= most) continue;
    found.add_among({"train.loops"},
                    fmt::format("train.loops asks for {} loops, the model is made for {}", loops, most),
                    "raise model.max_loop_iters or lower train.loops");
    return;
  }
}

void check_batch(const RunConfig& config, Problems& found) {
  const TrainSection& t = config.train;
  if (found.sound({"train.seq_len", "model.max_seq_len"}) && t.seq_len > config.model.max_seq_len) {
    found.add_among({"train.seq_len", "model.max_seq_len"},
                    fmt::format("train.seq_len is {}, the model's longest sequence (model.max_seq_len) is {}",
                                t.seq_len, config.model.max_seq_len));
  }
  if (!found.sound({"train.seq_len", "train.global_batch_tokens"})) return;
  if (t.global_batch_tokens > 0 && t.global_batch_tokens < t.seq_len) {
    found.add_among({"train.global_batch_tokens", "train.seq_len"},
                    fmt::format("train.global_batch_tokens is {}, less than one row of train.seq_len {}",
                                t.global_batch_tokens, t.seq_len));
    return;
  }
  if (!found.sound({"train.micro_batch", "train.target_tokens", "train.steps"})) return;
  try {
    batch_plan(t, std::max<int64_t>(t.micro_batch, 1));
  } catch (const Error& e) {
    const bool target = std::string_view(e.what()).starts_with("train.target_tokens");
    found.add_among({target ? "train.target_tokens" : "train.micro_batch"}, e.what(), e.hint());
  }
}

void check_data(const RunConfig& config, Problems& found) {
  const DataSection& d = config.data;
  if (found.sound({"data.weights", "data.source"}) && !d.weights.empty() && d.weights.size() != d.source.size()) {
    found.add_among({"data.weights", "data.source"},
                    fmt::format("data.weights has {} numbers for {} sources, it needs one for each", d.weights.size(),
                                d.source.size()));
  }
  if (found.sound({"data.workers", "data.lanes"}) && d.workers > d.lanes) {
    found.add_among({"data.workers", "data.lanes"},
                    fmt::format("data.workers is {}, more than data.lanes {}", d.workers, d.lanes),
                    fmt::format("set data.lanes to at least {}, or data.workers to at most {}", d.workers, d.lanes));
  }
  if (d.text_column.empty()) found.add_among({"data.text_column"}, "data.text_column is empty, it must name a column");
}

void check_checkpoint_dir(const RunConfig& config, Problems& found) {
  const std::string& dir = config.checkpoint.dir;
  const size_t scheme = dir.find("://");
  if (scheme == std::string::npos) return;
  const std::string rest = dir.substr(scheme + 3);
  const std::string bucket = rest.substr(0, rest.find('/'));
  if (dir.substr(0, scheme) == "s3" && !bucket.empty() && bucket.find_first_of("*?[:@ ") == std::string::npos) return;
  found.add_among({"checkpoint.dir"},
                  fmt::format("checkpoint.dir is '{}', which is no place for checkpoints", describe_name(dir)),
                  "give a folder, or s3://BUCKET/PREFIX");
}

void check_names(const RunConfig& config, Problems& found) {
  const std::string& name = config.run.name;
  const bool control = std::any_of(name.begin(), name.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) == 0x7f;
  });
  if (name.empty() || name == "." || name == ".." || name.size() > 200 || control ||
      name.find('/') != std::string::npos) {
    found.add_among({"run.name"}, fmt::format("run.name is '{}', it must be one path component of at most 200 bytes",
                                              describe_name(name)));
  }
  const std::string& spot = config.run.spot_notice;
  if (spot != "auto" && spot != "off" && !spot.starts_with("http://") && !spot.starts_with("https://")) {
    found.add_among({"run.spot_notice"},
                    fmt::format("run.spot_notice is '{}', it must be \"auto\", \"off\" or an http(s) address",
                                describe_name(spot)));
  }
}

}  // namespace

void check_together(const RunConfig& config, Problems& found) {
  check_model(config, found);
  check_loops(config, found);
  check_batch(config, found);
  check_data(config, found);
  check_checkpoint_dir(config, found);
  check_names(config, found);
}

void RunConfig::resolve_vocab(int64_t tokenizer_ordinary) {
  if (vocab_size && *vocab_size < tokenizer_ordinary) {
    throw usage_error(
        fmt::format("model.vocab_size is {}, the tokenizer has {} tokens", *vocab_size, tokenizer_ordinary),
        fmt::format("set model.vocab_size to at least {}, or leave it out", tokenizer_ordinary));
  }
  if (vocab_size) return;
  ModelConfig settled = model;
  settled.vocab_size = tokenizer_ordinary;
  if (const auto wrong = problems(settled); !wrong.empty()) throw usage_error(wrong.front());
  model = settled;
  vocab_size = tokenizer_ordinary;
}

void require_training_inputs(const RunConfig& config) {
  std::vector<std::string> missing;
  if (config.tokenizer.path.empty()) missing.emplace_back("tokenizer.path is not set: the tokenizer's file or address");
  if (config.data.source.empty()) missing.emplace_back("data.source is not set: where the text is");
  if (config.train.target_tokens == 0 && config.train.steps == 0) {
    missing.emplace_back("neither train.target_tokens nor train.steps is set: how long to train");
  }
  if (missing.empty()) return;
  std::string text = missing.size() == 1 ? missing[0] : "the configuration lacks what training needs";
  for (size_t i = 0; missing.size() > 1 && i < missing.size(); ++i) text += "\n  " + missing[i];
  throw usage_error(text);
}

std::vector<std::string> warnings(const RunConfig& config) {
  const TrainSection& t = config.train;
  std::vector<std::string> out;
  const BatchPlan plan = batch_plan(t, std::max<int64_t>(t.micro_batch, 1));
  if (plan.steps > 0 && t.warmup_steps >= plan.steps) {
    out.push_back(
        fmt::format("train.warmup_steps is {} and the run has {} steps: the learning rate never reaches its peak",
                    t.warmup_steps, plan.steps));
  }
  if (t.steps > 0 && t.target_tokens > 0) {
    out.push_back(fmt::format("train.steps {} counts, train.target_tokens {} does not", with_commas(t.steps),
                              with_commas(t.target_tokens)));
  }
  if (t.global_batch_tokens > 0 && t.micro_batch * t.seq_len > t.global_batch_tokens) {
    out.push_back(
        fmt::format("one micro-batch has {} tokens, more than train.global_batch_tokens {}: a step takes it all",
                    with_commas(t.micro_batch * t.seq_len), with_commas(t.global_batch_tokens)));
  }
  if (config.log.eval_every > 0 && config.data.validation_documents == 0 && config.data.validation_source.empty()) {
    out.emplace_back("log.eval_every is set, but no held-out text is: set data.validation_documents");
  }
  if (config.log.sample_every > 0 && config.log.prompts.empty()) {
    out.emplace_back("log.sample_every is set, but log.prompts is empty: there is nothing to continue");
  }
  if (config.cost.budget > 0 && config.cost.price_per_hour == 0) {
    out.emplace_back("cost.budget is set without cost.price_per_hour: spending cannot be followed");
  }
  const auto& c = config.checkpoint;
  if (c.keep_every > 0 && c.keep_every % c.every != 0) {
    out.push_back(
        fmt::format("checkpoint.keep_every {} is no multiple of checkpoint.every {}: only steps that are "
                    "multiples of both are kept",
                    c.keep_every, c.every));
  }
  return out;
}

}  // namespace mythos
