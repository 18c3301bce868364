#include "checkpoint/model_state.h"

#include "base/error.h"
#include "checkpoint/layout.h"
#include "checkpoint/s3_target.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>

namespace mythos {
namespace fs = std::filesystem;
namespace {

// What every reference state_dict holds beside weights, and what follows from the configuration.
constexpr std::array<std::string_view, 2> recomputed = {"freqs_cis", "freqs_cis_mla"};

// At most five names, and how many more there are.
std::string names_text(const std::vector<std::string>& names) {
  constexpr size_t shown = 5;
  std::vector<std::string> first;
  for (size_t i = 0; i < std::min(names.size(), shown); ++i) first.push_back(shown_name(names[i]));
  return names.size() > shown ? fmt::format("{} and {} more", fmt::join(first, ", "), names.size() - shown)
                              : fmt::format("{}", fmt::join(first, ", "));
}

float from_half(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000U} << 16;
  const uint32_t exponent = (bits >> 10) & 0x1FU;
  const uint32_t fraction = bits & 0x3FFU;
  if (exponent == 0) {
    const float value = static_cast<float>(fraction) * 0x1p-24F;
    return sign != 0 ? -value : value;
  }
  if (exponent == 0x1F) return std::bit_cast<float>(sign | 0x7F800000U | (fraction << 13));
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
}

// Writes a file front to back into one without a name.
class NamelessSink : public ByteSink {
 public:
  explicit NamelessSink(NamelessFile& file) : file_(file) {}
  using ByteSink::write;
  void write(std::span<const std::byte> bytes) override {
    file_.write_at(at_, bytes);
    at_ += bytes.size();
  }
  void commit() override {}

 private:
  NamelessFile& file_;
  uint64_t at_ = 0;
};

}  // namespace

std::span<const std::byte> as_f32(const TensorBytes& tensor, std::string_view where,
                                  std::deque<std::vector<std::byte>>& copies) {
  if (tensor.dtype == DType::F32) return tensor.data;
  const auto n = static_cast<size_t>(tensor.numel());
  const auto convert = [&](auto kind, auto&& to_float) -> std::span<const std::byte> {
    std::vector<std::byte>& out = copies.emplace_back(n * sizeof(float));
    for (size_t i = 0; i < n; ++i) {
      auto value = kind;
      std::memcpy(&value, tensor.data.data() + i * sizeof(value), sizeof(value));
      const float f = to_float(value);
      std::memcpy(out.data() + i * sizeof(f), &f, sizeof(f));
    }
    return out;
  };
  switch (tensor.dtype) {
    case DType::F64:
      return convert(double{}, [](double x) { return static_cast<float>(x); });
    case DType::F16:
      return convert(uint16_t{}, from_half);
    case DType::BF16:
      return convert(uint16_t{}, [](uint16_t x) { return std::bit_cast<float>(uint32_t{x} << 16); });
    default:
      break;
  }
  throw FormatError(
      fmt::format("{}: {} is of {}, which weights cannot be", where, shown_name(tensor.name), to_string(tensor.dtype)));
}

std::vector<TensorBytes> adopt_weights(std::map<std::string, TensorBytes> found, const ModelConfig& model,
                                       std::string_view where, std::deque<std::vector<std::byte>>& copies) {
  // Wrappers of a model put a word of theirs before every name.
  for (const std::string_view prefix : {"_orig_mod.", "module."}) {
    const auto has_it = [&](const auto& t) { return t.first.starts_with(prefix); };
    if (found.empty() || !std::ranges::all_of(found, has_it)) continue;
    std::map<std::string, TensorBytes> bare;
    for (auto& [name, tensor] : found) {
      tensor.name = name.substr(prefix.size());
      bare.emplace(tensor.name, std::move(tensor));
    }
    found = std::move(bare);
  }
  // A model of millions of experts or layers would be a list of millions of names, before it could be compared.
  if (static_cast<uint64_t>(model.n_experts + model.n_shared_experts + model.prelude_layers + model.coda_layers) >
      found.size()) {
    throw FormatError(fmt::format("{} holds {} tensors, too few for its configuration", where, found.size()));
  }
  for (const std::string_view name : recomputed) found.erase(std::string(name));
  if (const auto head = found.find("head.weight"); head != found.end()) {
    const auto embed = found.find("embed.weight");
    if (embed != found.end()) {
      const TensorBytes& a = embed->second;
      const TensorBytes& b = head->second;
      if (a.dtype != b.dtype || a.shape != b.shape || !std::ranges::equal(a.data, b.data)) {
        throw FormatError(fmt::format("{} has 'embed.weight' and 'head.weight' that differ", where),
                          "this model has one matrix for both; a model trained with two cannot be used");
      }
    }
    found.erase(head);
  }
  std::vector<TensorBytes> out;
  std::vector<std::string> missing;
  std::vector<std::string> wrong;
  const size_t n_parameters = parameter_specs(model).size();
  for (TensorInfo& wanted : weight_tensors(model)) {
    const auto it = found.find(wanted.name);
    if (it == found.end()) {
      if (out.size() + missing.size() + wrong.size() < n_parameters) {
        missing.push_back(wanted.name);
      } else {  // a buffer that nothing but a checkpoint of the reference holds: zero, as it begins
        const auto bytes = static_cast<size_t>(tensor_bytes(wanted.dtype, wanted.shape).value_or(0));
        out.push_back({std::move(wanted), copies.emplace_back(bytes)});
      }
      continue;
    }
    if (it->second.shape != wanted.shape) {
      wrong.push_back(fmt::format("{} is [{}], and its configuration makes it [{}]", shown_name(wanted.name),
                                  fmt::join(it->second.shape, ", "), fmt::join(wanted.shape, ", ")));
    } else {
      const auto data = as_f32(it->second, where, copies);
      out.push_back({std::move(wanted), data});
    }
    found.erase(it);
  }
  std::vector<std::string> surplus;
  for (const auto& [name, tensor] : found) surplus.push_back(name);
  if (missing.empty() && surplus.empty() && wrong.empty()) return out;
  std::vector<std::string> parts;
  if (!wrong.empty()) {
    parts.push_back(wrong.size() == 1 ? wrong[0] : fmt::format("{}; and {} more", wrong[0], wrong.size() - 1));
  }
  if (!missing.empty()) parts.push_back(fmt::format("it lacks {}", names_text(missing)));
  if (!surplus.empty()) parts.push_back(fmt::format("it has {}, which the model has not", names_text(surplus)));
  throw FormatError(fmt::format("{} does not hold the tensors of its model: {}", where, fmt::join(parts, "; ")),
                    "is its configuration the one it was trained with?");
}

ModelConfig model_from_fields(const Json& fields, std::string_view where) {
  Json all = model_to_json(ModelConfig{});
  for (const auto& [name, value] : fields.items()) {
    if (!all.contains(name)) {
      throw failure(
          fmt::format("the configuration in {} has a field {} that is not known here", where, shown_name(name)),
          "the model may be of another kind");
    }
    all[name] = value;
  }
  return model_from_json(all, where);
}

Json lags_to_json(const std::vector<int64_t>& lags) {
  Json out = Json::array();
  for (size_t i = 0; i < lags.size();) {
    size_t end = i + 1;
    while (end < lags.size() && lags[end] == lags[i]) ++end;
    if (lags[i] != 0) out.push_back({i, end - i, lags[i]});
    i = end;
  }
  return out;
}

std::vector<int64_t> lags_from_json(const Json& json, size_t parameters, std::string_view where) {
  std::vector<int64_t> lags(parameters, 0);
  const auto whole = [](const Json& j) { return j.is_number_integer() && j >= 0; };
  bool good = json.is_array();
  for (size_t i = 0; good && i < json.size(); ++i) {
    const Json& run = json[i];
    good = run.is_array() && run.size() == 3 && whole(run[0]) && whole(run[1]) && whole(run[2]);
    if (!good) break;
    const auto first = run[0].get<uint64_t>();
    const auto count = run[1].get<uint64_t>();
    good = first <= parameters && count <= parameters - first;
    if (good) std::fill_n(lags.begin() + static_cast<ptrdiff_t>(first), count, run[2].get<int64_t>());
  }
  if (!good) throw failure(fmt::format("{} has 'optimizer_lags' that do not fit its model", where));
  return lags;
}

bool is_own_file(const SafetensorsFile& file) {
  const auto it = file.metadata().find("format");
  return it != file.metadata().end() && it->second.starts_with("mythos.");
}

bool is_imported(const CheckpointMeta& meta) { return meta.state.is_object() && meta.state.contains("imported"); }

ModelState state_of(Checkpoint checkpoint) {
  checkpoint.verify();
  auto kept = std::make_shared<Checkpoint>(std::move(checkpoint));
  ModelState state;
  state.meta = kept->meta;
  state.has_optimizer = kept->has_optimizer;
  for (const auto& e : kept->file.entries()) state.tensors.push_back({e, kept->file.data(e)});
  state.source = std::move(kept);
  return state;
}

ModelState read_model_state(const fs::path& path) {
  if (ZipFile::looks_like_one(path) || path.extension() == ".pt" || path.extension() == ".pth") return import_pt(path);
  if (is_own_file(SafetensorsFile::open(path))) return state_of(Checkpoint::open(path));
  return import_safetensors(path);
}

Checkpoint as_checkpoint(const ModelState& state, const fs::path& shown) {
  std::shared_ptr<NamelessFile> copied;
  const std::string_view format = state.has_optimizer ? checkpoint_format : weights_format;
  const CheckedPlace place{.shown = shown.string(),
                           .open =
                               [&](uint64_t bytes) {
                                 copied = std::make_shared<NamelessFile>(bytes, shown.string());
                                 return std::make_unique<NamelessSink>(*copied);
                               },
                           .free = {}};
  write_checked(place, state.tensors, to_metadata(state.meta, format), {.refuse_non_finite = false});
  Checkpoint checkpoint = Checkpoint::open(copied->path(), shown);
  checkpoint.copy = copied;
  checkpoint.meta = state.meta;
  return checkpoint;
}

}  // namespace mythos
