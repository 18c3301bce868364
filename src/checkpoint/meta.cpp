#include "checkpoint/meta.h"

#include "base/error.h"

#include <fmt/ranges.h>

#include <charconv>
#include <cmath>
#include <ctime>
#include <type_traits>

namespace mythos {
namespace {

// Every field of a model by its name: the one place that lists them for files.
template <class Config, class Visit>
void each_field(Config& c, Visit&& visit) {
  visit("vocab_size", c.vocab_size);
  visit("dim", c.dim);
  visit("n_heads", c.n_heads);
  visit("n_kv_heads", c.n_kv_heads);
  visit("max_seq_len", c.max_seq_len);
  visit("max_loop_iters", c.max_loop_iters);
  visit("prelude_layers", c.prelude_layers);
  visit("coda_layers", c.coda_layers);
  visit("attn_type", c.attn_type);
  visit("kv_lora_rank", c.kv_lora_rank);
  visit("q_lora_rank", c.q_lora_rank);
  visit("qk_rope_head_dim", c.qk_rope_head_dim);
  visit("qk_nope_head_dim", c.qk_nope_head_dim);
  visit("v_head_dim", c.v_head_dim);
  visit("n_experts", c.n_experts);
  visit("n_shared_experts", c.n_shared_experts);
  visit("n_experts_per_tok", c.n_experts_per_tok);
  visit("expert_dim", c.expert_dim);
  visit("act_threshold", c.act_threshold);
  visit("rope_theta", c.rope_theta);
  visit("lora_rank", c.lora_rank);
  visit("max_output_tokens", c.max_output_tokens);
  visit("dropout", c.dropout);
}

template <class T>
Json field_json(const T& value) {
  if constexpr (std::is_same_v<T, AttentionType>) {
    return to_string(value);
  } else {
    return value;
  }
}

// Reads one field; false if the JSON has another type.
bool read_field(const Json& json, int64_t& value) {
  if (!json.is_number_integer() || (json.is_number_unsigned() && json.get<uint64_t>() > INT64_MAX)) return false;
  value = json.get<int64_t>();
  return true;
}
bool read_field(const Json& json, double& value) {
  if (!json.is_number()) return false;
  value = json.get<double>();
  return true;
}
bool read_field(const Json& json, AttentionType& value) {
  for (const AttentionType type : {AttentionType::mla, AttentionType::gqa}) {
    if (json == to_string(type)) {
      value = type;
      return true;
    }
  }
  return false;
}

class Reader {
 public:
  Reader(const std::map<std::string, std::string>& metadata, std::string_view where)
      : metadata_(metadata), where_(where) {}

  const std::string& text(const std::string& key) const {
    const auto it = metadata_.find(key);
    if (it == metadata_.end()) throw failure(fmt::format("{} has no '{}' in its metadata", where_, key));
    return it->second;
  }
  template <class T>
  T number(const std::string& key) const {
    const std::string& digits = text(key);
    T value = 0;
    const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (code != std::errc() || end != digits.data() + digits.size() || value < T{0}) {
      throw failure(
          fmt::format("{} has {} as its '{}', which is not a whole number from 0", where_, shown_name(digits), key));
    }
    return value;
  }
  Json json(const std::string& key) const {
    return parse_json(text(key), fmt::format("the metadata '{}' of {}", key, where_));
  }

 private:
  const std::map<std::string, std::string>& metadata_;
  std::string_view where_;
};

}  // namespace

Json model_to_json(const ModelConfig& model) {
  Json json = Json::object();
  each_field(model, [&](const char* name, const auto& value) { json[name] = field_json(value); });
  return json;
}

ModelConfig model_from_json(const Json& json, std::string_view where) {
  if (!json.is_object()) throw failure(fmt::format("the model in {} is not a JSON object", where));
  ModelConfig model;
  size_t known = 0;
  each_field(model, [&](const char* name, auto& value) {
    const auto it = json.find(name);
    if (it == json.end()) throw failure(fmt::format("the model in {} lacks {}", where, name));
    if (!read_field(*it, value)) throw failure(fmt::format("the model in {} has a wrong {}", where, name));
    ++known;
  });
  if (known != json.size()) {
    throw failure(fmt::format("the model in {} has fields that are not known here", where),
                  "it was written by a newer program");
  }
  const auto wrong = problems(model);
  if (!wrong.empty()) throw failure(fmt::format("the model in {} is impossible: {}", where, wrong.front()));
  return model;
}

std::vector<std::string> differences(const ModelConfig& there, const ModelConfig& here) {
  const Json a = model_to_json(there);
  const Json b = model_to_json(here);
  std::vector<std::string> out;
  for (const auto& [name, value] : a.items()) {
    if (value != b[name]) out.push_back(fmt::format("{} is {} there, {} here", name, value.dump(), b[name].dump()));
  }
  return out;
}

SafetensorsMetadata to_metadata(const CheckpointMeta& meta, std::string_view format) {
  const auto dump = [](const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); };
  SafetensorsMetadata out = {
      {"format", std::string(format)},
      {"step", fmt::format("{}", meta.step)},
      {"tokens", fmt::format("{}", meta.tokens)},
      {"model", dump(model_to_json(meta.model))},
      {"config", meta.config},
      {"tokenizer", meta.tokenizer},
      {"seed", fmt::format("{}", meta.seed)},
      {"program", meta.program},
      {"libtorch", meta.libtorch},
      {"host", meta.host},
      {"device", meta.device},
      {"created", meta.created.empty() ? utc_now() : meta.created},
  };
  if (format == checkpoint_format) {
    out.emplace_back("data", dump(meta.data));
    out.emplace_back("state", dump(meta.state));
  }
  return out;
}

CheckpointMeta to_checkpoint_meta(const std::map<std::string, std::string>& metadata, std::string_view where) {
  const Reader read(metadata, where);
  const std::string& format = read.text("format");
  if (format != checkpoint_format && format != weights_format) {
    throw failure(fmt::format("{} has the format {}, known here are {} and {}", where, shown_name(format),
                              checkpoint_format, weights_format),
                  format.starts_with("mythos.") ? "it was written by another version of this program" : "");
  }
  CheckpointMeta meta;
  meta.step = read.number<int64_t>("step");
  meta.tokens = read.number<int64_t>("tokens");
  meta.model = model_from_json(read.json("model"), where);
  meta.config = read.text("config");
  meta.tokenizer = read.text("tokenizer");
  meta.seed = read.number<uint64_t>("seed");
  if (format == checkpoint_format) {
    meta.data = read.json("data");
    meta.state = read.json("state");
  }
  meta.program = read.text("program");
  meta.libtorch = read.text("libtorch");
  meta.host = read.text("host");
  meta.device = read.text("device");
  meta.created = read.text("created");
  return meta;
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday,
                     utc.tm_hour, utc.tm_min, utc.tm_sec);
}

}  // namespace mythos
