#include "checkpoint/checkpoint.h"

#include "base/error.h"
#include "checkpoint/checked_file.h"
#include "checkpoint/describe_pt.h"
#include "checkpoint/layout.h"
#include "checkpoint/zip_reader.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <utility>

namespace mythos {
namespace fs = std::filesystem;
namespace {

FormatError other_tensors(std::string_view where, std::string_view why) {
  return FormatError(fmt::format("{} does not hold the tensors of its own model: {}", where, why));
}

// Throws unless the table is the one of the model, in its order.
template <class Table>
void require_table(const Table& table, const std::vector<TensorInfo>& wanted, std::string_view where) {
  for (size_t i = 0; i < std::min(table.size(), wanted.size()); ++i) {
    const TensorInfo& is = table[i];
    const TensorInfo& must = wanted[i];
    if (is.name != must.name) {
      throw other_tensors(where, fmt::format("{} is in the place of {}", shown_name(is.name), shown_name(must.name)));
    }
    if (is.dtype != must.dtype || is.shape != must.shape) {
      throw other_tensors(where, fmt::format("{} is [{}] of {} and should be [{}] of {}", shown_name(is.name),
                                             fmt::join(is.shape, ", "), to_string(is.dtype),
                                             fmt::join(must.shape, ", "), to_string(must.dtype)));
    }
  }
  if (table.size() != wanted.size()) {
    throw other_tensors(where, fmt::format("it has {} and should have {}", table.size(), wanted.size()));
  }
}

bool is_ours(const SafetensorsFile& file, std::string_view format) {
  const auto it = file.metadata().find("format");
  return it != file.metadata().end() && it->second == format;
}

std::span<const std::byte> named(const Checkpoint& c, std::string_view prefix, std::string_view name) {
  return c.file.data(c.file.at(fmt::format("{}{}", prefix, name)));
}

}  // namespace

Checkpoint Checkpoint::open(const fs::path& at, const fs::path& shown) {
  SafetensorsFile file = SafetensorsFile::open(at, shown);
  const fs::path path = file.path();
  verify_header(file);
  CheckpointMeta meta = to_checkpoint_meta(file.metadata(), path.string());
  const bool training = is_ours(file, checkpoint_format);
  // A model of millions of experts or layers would be a table of millions of tensors, before it could be compared.
  const ModelConfig& m = meta.model;
  if (static_cast<uint64_t>(m.n_experts + m.n_shared_experts + m.prelude_layers + m.coda_layers) >
      file.entries().size()) {
    throw other_tensors(path.string(), fmt::format("it has only {}", file.entries().size()));
  }
  require_table(file.entries(), training ? checkpoint_tensors(m) : weight_tensors(m), path.string());
  return {std::move(meta), std::move(file), training};
}

void Checkpoint::verify(int threads) const {
  verify_header(file);
  verify_tensors(file, threads);
}

std::span<const std::byte> Checkpoint::weights(std::string_view name) const {
  return named(*this, has_optimizer ? model_prefix : "", name);
}
std::span<const std::byte> Checkpoint::exp_avg(std::string_view name) const {
  return named(*this, exp_avg_prefix, name);
}
std::span<const std::byte> Checkpoint::exp_avg_sq(std::string_view name) const {
  return named(*this, exp_avg_sq_prefix, name);
}

void save_checkpoint(const fs::path& path, const CheckpointMeta& meta, std::span<const TensorBytes> tensors) {
  require_table(tensors, checkpoint_tensors(meta.model), path.string());
  write_checked(path, tensors, to_metadata(meta));
}

void save_checkpoint(const CheckedPlace& place, const CheckpointMeta& meta, std::span<const TensorBytes> tensors,
                     const WriteOptions& options) {
  require_table(tensors, checkpoint_tensors(meta.model), place.shown);
  write_checked(place, tensors, to_metadata(meta), options);
}

CheckpointParts checkpoint_parts(const CheckpointMeta& meta) {
  const std::vector<TensorInfo> table = checkpoint_tensors(meta.model);
  CheckpointParts parts;
  parts.bytes = header_bytes_of(table, to_metadata(meta));
  for (const TensorInfo& t : table) {
    parts.offsets.push_back(parts.bytes);
    parts.bytes += static_cast<uint64_t>(tensor_bytes(t.dtype, t.shape).value_or(0));
  }
  return parts;
}

void write_weights_only(const Checkpoint& checkpoint, const fs::path& path) {
  checkpoint.verify();
  std::vector<TensorBytes> tensors;
  for (TensorInfo& info : weight_tensors(checkpoint.meta.model)) {
    const auto data = checkpoint.weights(info.name);
    tensors.push_back({std::move(info), data});
  }
  write_checked(path, tensors, to_metadata(checkpoint.meta, weights_format));
}

void require_same_model(const Checkpoint& checkpoint, const ModelConfig& model) {
  auto all = differences(checkpoint.meta.model, model);
  if (all.empty()) return;
  const size_t more = all.size() > 3 ? all.size() - 3 : 0;
  all.resize(all.size() - more);
  throw usage_error(fmt::format("{} holds another model: {}{}", checkpoint.path().string(), fmt::join(all, "; "),
                                more > 0 ? fmt::format("; and {} more", more) : ""),
                    "use the config it was trained with, or another run name");
}

bool has_tied_head(const SafetensorsFile& file, std::string_view prefix) {
  const auto* embed = file.find(fmt::format("{}embed.weight", prefix));
  const auto* head = file.find(fmt::format("{}head.weight", prefix));
  if (embed == nullptr || head == nullptr) return false;
  const auto a = file.data(*embed);
  const auto b = file.data(*head);
  if (embed->dtype != head->dtype || embed->shape != head->shape || !std::equal(a.begin(), a.end(), b.begin())) {
    throw FormatError(fmt::format("{} has {} and {} that differ", file.path().string(), shown_name(embed->name),
                                  shown_name(head->name)),
                      "this model has one matrix for both; a model trained with two cannot be used");
  }
  return true;
}

Json describe(const fs::path& path) {
  if (ZipFile::looks_like_one(path) || path.extension() == ".pt" || path.extension() == ".pth")
    return describe_pt(path);
  const SafetensorsFile file = SafetensorsFile::open(path);
  const bool training = is_ours(file, checkpoint_format);
  const bool weights = is_ours(file, weights_format);
  Json out;
  out["path"] = path.string();
  out["kind"] = training                               ? "checkpoint"
                : weights                              ? "weights"
                : file.metadata().count("golden") != 0 ? "golden"
                                                       : "safetensors";
  out["bytes"] = file.file_bytes();
  out["header_bytes"] = file.data_begin();
  out["tensors"] = file.entries().size();
  int64_t numbers = 0;
  std::map<std::string, int64_t> dtypes;
  Json table = Json::array();
  for (const auto& e : file.entries()) {
    numbers += e.numel();
    ++dtypes[std::string(to_string(e.dtype))];
    table.push_back({{"name", e.name}, {"dtype", to_string(e.dtype)}, {"shape", e.shape}});
  }
  if (training || weights) {
    const CheckpointMeta meta = Checkpoint::open(path).meta;
    out["parameters"] = parameter_count(meta.model);
    out["dtypes"] = dtypes;
    out["step"] = meta.step;
    out["tokens"] = meta.tokens;
    out["tokenizer"] = meta.tokenizer;
    out["seed"] = meta.seed;
    out["program"] = meta.program;
    out["libtorch"] = meta.libtorch;
    out["host"] = meta.host;
    out["device"] = meta.device;
    out["created"] = meta.created;
    out["model"] = model_to_json(meta.model);
    if (training) {
      out["data"] = meta.data;
      out["state"] = meta.state;
    }
    out["config"] = meta.config;
  } else {
    out["parameters"] = numbers;
    out["dtypes"] = dtypes;
    out["metadata"] = file.metadata();
  }
  out["tensor_table"] = std::move(table);
  return out;
}

}  // namespace mythos
