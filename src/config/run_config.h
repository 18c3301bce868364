// Everything a run is told: one TOML file, `section.key=VALUE` overrides, defaults. docs/config.md lists every key with
// its range; the table it is made from is config/keys.h.
#pragma once

#include "model/config.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mythos {

/// [tokenizer]
struct TokenizerSection {
  std::string path;  ///< .tiktoken, tokenizer.json, or hf://OWNER/NAME

  bool operator==(const TokenizerSection&) const = default;
};

/// [data]
struct DataSection {
  std::vector<std::string> source;  ///< files, folders, globs or addresses
  std::string text_column = "text";
  std::vector<double> weights;       ///< one per source; empty: one source after the other
  int64_t validation_documents = 0;  ///< held out from the front of the data, or read from validation_source
  std::vector<std::string> validation_source;
  bool document_separator = false;  ///< the end-of-text token between documents
  bool shuffle = false;
  int64_t lanes = 16;
  int64_t workers = 1;
  std::string on_bad_data = "skip";  ///< "skip" or "stop"
  int64_t epochs = 0;                ///< 0: endless
  double retry_minutes = 30;         ///< how long a source that cannot be reached is waited for

  bool operator==(const DataSection&) const = default;
};

/// [train]
struct TrainSection {
  std::string device = "auto";      ///< "auto", "cpu", "cuda"
  std::string dtype = "auto";       ///< "auto", "float32", "float64", "bfloat16"
  int64_t seq_len = 2048;           ///< tokens; left out of the file: at most the model's max_seq_len
  int64_t micro_batch = 0;          ///< rows at once on one device; 0: "auto"
  int64_t global_batch_tokens = 0;  ///< tokens a step; 0: one micro-batch a step
  int64_t target_tokens = 0;        ///< tokens of the whole run; 0: `steps` says
  int64_t steps = 0;                ///< length of the run in steps; 0: from target_tokens
  double lr = 6e-4;                 ///< peak learning rate
  double min_lr_ratio = 0.1;        ///< floor as a part of the peak
  int64_t warmup_steps = 300;
  std::string schedule = "cosine";  ///< "cosine", "linear", "constant"
  double weight_decay = 0.1;
  bool decay_norms = true;  ///< false: norms and vectors are not decayed
  std::vector<double> betas = {0.9, 0.95};
  double eps = 1e-8;
  double clip = 1.0;               ///< largest gradient norm; 0: no clipping
  double router_bias_speed = 0;    ///< change of an expert's bias in a step; 0: none
  std::vector<int64_t> loops;      ///< one number, or the choices drawn from each step; never empty after loading
  std::string recompute = "auto";  ///< "none", "loop", "auto"
  bool cuda_graphs = true;         ///< micro-steps on a GPU are captured and replayed
  int64_t seed = 0;
  std::string sharding = "full";          ///< "none", "optimizer", "full", "hybrid"
  std::string reduce_gradients = "step";  ///< "step", "micro_step"
  int64_t sharding_group = 0;             ///< ranks, for "hybrid"; 0: those of one machine
  double peer_timeout = 60;               ///< seconds
  double max_hours = 0;                   ///< 0: no limit
  int64_t skip_limit = 5;                 ///< steps in a row that are not finite before going back to a checkpoint
  int64_t rollback_limit = 3;             ///< times of going back before giving up
  int64_t threads = 0;                    ///< 0: all that this process may use

  bool operator==(const TrainSection&) const = default;
};

/// [checkpoint]
struct CheckpointSection {
  std::string dir;      ///< default: run.dir/checkpoints
  int64_t every = 200;  ///< steps
  int64_t keep_last = 3;
  int64_t keep_every = 0;  ///< steps whose checkpoints are never pruned; 0: none
  bool background = true;  ///< training goes on while one is written

  bool operator==(const CheckpointSection&) const = default;
};

/// [run]
struct RunSection {
  std::string dir;                   ///< default: runs/NAME
  std::string name;                  ///< default: the configuration's file name without extension
  std::string notify;                ///< command run on finish, crash, stop, rollback, low disk; empty: none
  std::string spot_notice = "auto";  ///< "auto", "off", or the address of the metadata service to ask

  bool operator==(const RunSection&) const = default;
};

/// [log]
struct LogSection {
  int64_t every = 10;        ///< steps
  int64_t eval_every = 0;    ///< steps; 0: never while training
  int64_t sample_every = 0;  ///< steps; 0: never while training
  std::vector<std::string> prompts;
  int64_t sample_tokens = 32;

  bool operator==(const LogSection&) const = default;
};

/// [cost]
struct CostSection {
  double price_per_hour = 0;  ///< dollars; 0: unknown
  double budget = 0;          ///< dollars; 0: no limit

  bool operator==(const CostSection&) const = default;
};

struct RunConfig {
  std::string preset;                 ///< [model] preset; empty: the fields alone
  std::optional<int64_t> vocab_size;  ///< as given; nothing: the tokenizer's (see resolve_vocab)
  ModelConfig model;                  ///< [model]: the preset with the given fields over it
  TokenizerSection tokenizer;
  DataSection data;
  TrainSection train;
  CheckpointSection checkpoint;
  RunSection run;
  LogSection log;
  CostSection cost;

  /// Settles model.vocab_size where the configuration gave none: the tokenizer's number of ordinary tokens. A given
  /// vocabulary may be larger (padding); a smaller one throws usage Error with both numbers.
  void resolve_vocab(int64_t tokenizer_ordinary);

  bool operator==(const RunConfig&) const = default;
};

/// Reads a configuration file (at most 1 MB), lays `overrides` ("section.key=VALUE") over it and fills in the defaults.
/// VALUE is TOML; what does not parse as TOML is a string, and a text key takes any VALUE as it stands. Later overrides
/// win. Relative paths are left as they are: they count from the current folder, not from the file's.
/// Throws one usage Error that names every problem, each on its own line with the file's line number: unknown and
/// misplaced keys, wrong types, values out of range, and values that do not fit together. Nothing is opened but the
/// file.
RunConfig load_config(const std::filesystem::path& path, std::span<const std::string> overrides = {});

/// The same from text; `name` is used in messages, `run_name` where the text has no run.name.
RunConfig parse_config(std::string_view text, std::string_view name, std::string_view run_name,
                       std::span<const std::string> overrides = {});

/// Throws one usage Error naming what a training run cannot do without and this configuration lacks: tokenizer.path,
/// data.source, and a length (train.target_tokens or train.steps).
void require_training_inputs(const RunConfig& config);

/// Things that are allowed and rarely meant, one sentence each, for the start of a run.
std::vector<std::string> warnings(const RunConfig& config);

/// The resolved configuration with every key; parse_config reads an equal one back.
std::string to_toml(const RunConfig& config);

/// What a key has a bearing on; decides what a changed key means for a run that is resumed.
enum class Bearing {
  nothing,    ///< where and how it runs
  model,      ///< the network itself: another model
  data,       ///< which rows come, in which order
  batch,      ///< rows at once: the real global batch, and with it the number of steps, may move a little
  schedule,   ///< length of the run, learning rate, tokens a step
  optimizer,  ///< how a step changes the weights
};
std::string_view to_string(Bearing bearing);

struct Difference {
  std::string key;  ///< "train.lr"
  std::string a;    ///< both as TOML; "unset" where there is no value
  std::string b;
  Bearing bearing = Bearing::nothing;
};
/// Every key in which two configurations differ, in the table's order.
std::vector<Difference> diff(const RunConfig& a, const RunConfig& b);

}  // namespace mythos
