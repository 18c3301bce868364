#include "infer/checkpoint_io.h"

#include "base/error.h"
#include "base/units.h"
#include "checkpoint/layout.h"
#include "checkpoint/model_state.h"
#include "checkpoint/places.h"
#include "checkpoint/store.h"
#include "config/run_config.h"
#include "data/tokenizer_source.h"
#include "kernels/device.h"
#include "storage/s3.h"
#include "storage/storage.h"

#include <unordered_map>

namespace mythos {
namespace fs = std::filesystem;

namespace {

// The file's bytes need not be aligned, so they go through a tensor of their own.
at::Tensor tensor_of(std::span<const std::byte> bytes, at::IntArrayRef shape) {
  at::Tensor plain = at::empty(shape, at::kFloat);
  TORCH_CHECK(plain.nbytes() == bytes.size(), "a checkpoint tensor of ", bytes.size(), " bytes for one of ",
              plain.nbytes());
  std::copy(bytes.begin(), bytes.end(), static_cast<std::byte*>(plain.mutable_data_ptr()));
  return plain;
}

}  // namespace

fs::path checkpoints_of(const fs::path& run) {
  std::error_code ec;
  // Where it saved last, if there is something; one that was set aside has its own beside the note.
  for (const std::string& place : checkpoint_places(run)) {
    if (is_s3_address(place) || fs::is_directory(place, ec)) return place;
  }
  // The folder inside comes first: a run that was set aside still names its old place.
  if (fs::is_directory(run / "checkpoints", ec)) return run / "checkpoints";
  if (!fs::exists(run / "config.toml", ec)) return run;
  const fs::path named = load_config(run / "config.toml").checkpoint.dir;
  return is_s3_address(named.string()) || fs::is_directory(named, ec) ? named : run;
}

namespace {

Checkpoint newest_in(const fs::path& place, const fs::path& asked) {
  auto newest = CheckpointStore(place, 1).newest(CheckpointStore::Damaged::leave);
  if (newest) return std::move(*newest);
  throw usage_error(fmt::format("{} holds no checkpoint", asked.string()), "the run has not saved one yet");
}

// A run that moved its checkpoints may not have saved one in the new place yet.
Checkpoint newest_of_run(const fs::path& run) {
  for (const std::string& place : checkpoint_places(run)) {
    const CheckpointStore store(place, 1);
    if (!store.list().empty()) return newest_in(place, run);
  }
  return newest_in(checkpoints_of(run), run);
}

// One object: through a store of its folder, which knows how to read it.
Checkpoint open_object(const std::string& address) {
  const size_t slash = address.rfind('/');
  const auto target = CheckpointTarget::at(address.substr(0, slash));
  for (const StoredFile& file : target->list()) {
    if (file.name == address.substr(slash + 1)) return target->open(file, CheckpointTarget::Part::whole);
  }
  throw usage_error(fmt::format("there is no checkpoint at {}", address),
                    "give a .safetensors file, a folder of checkpoints, or a run's folder");
}

}  // namespace

Checkpoint open_checkpoint(const fs::path& path) {
  std::error_code ec;
  if (is_s3_address(path.string())) {
    if (!path.string().ends_with(".safetensors")) return newest_in(path, path);
    Checkpoint checkpoint = open_object(path.string());
    checkpoint.verify();
    return checkpoint;
  }
  if (!fs::exists(path, ec)) {
    throw usage_error(fmt::format("there is no checkpoint at {}", path.string()),
                      "give a .safetensors file or a run's folder");
  }
  if (fs::is_directory(path, ec)) return newest_of_run(path);
  if (ZipFile::looks_like_one(path) || !path.string().ends_with(".safetensors") ||
      !is_own_file(SafetensorsFile::open(path))) {
    return as_checkpoint(read_model_state(path), path);
  }
  Checkpoint checkpoint = Checkpoint::open(path);
  checkpoint.verify();
  return checkpoint;
}

namespace {

using Tensors = std::vector<NamedTensor>;

std::vector<TensorBytes> tensors_of(const Model& model, const Tensors& values, const Tensors& first,
                                    const Tensors& second, bool all_are_copies, std::vector<at::Tensor>& copies) {
  std::unordered_map<std::string, at::Tensor> by_name;
  const auto add = [&](std::string_view prefix, const Tensors& tensors) {
    for (const auto& [name, tensor] : tensors) by_name.emplace(std::string(prefix) + name, tensor);
  };
  add(model_prefix, values);
  Tensors buffers = model.named_buffers();
  if (all_are_copies) {
    for (auto& [name, tensor] : buffers) tensor = tensor.clone();
  }
  add(model_prefix, buffers);
  add(exp_avg_prefix, first);
  add(exp_avg_sq_prefix, second);
  std::vector<TensorBytes> out;
  for (const auto& info : checkpoint_tensors(model.config())) {
    at::Tensor t = by_name.at(info.name);
    const bool as_it_is = t.device().is_cpu() && t.scalar_type() == at::kFloat && t.is_contiguous();
    if (!as_it_is) t = t.to(at::kCPU, at::kFloat).contiguous();
    if (!as_it_is || all_are_copies) copies.push_back(t);
    out.push_back({info, {static_cast<const std::byte*>(t.const_data_ptr()), t.nbytes()}});
  }
  return out;
}

}  // namespace

std::vector<TensorBytes> training_tensors(const Model& model, const AdamW& optimizer, std::vector<at::Tensor>& copies) {
  const ParameterStore& store = model.parameters();
  if (store.device().is_cpu()) {
    return tensors_of(model, store.named_values(), optimizer.named_first_moments(), optimizer.named_second_moments(),
                      false, copies);
  }
  // A device's units come whole, all at once: named parameters are many and small.
  std::vector<at::Tensor> units;
  for (size_t u = 0; u < store.units(); ++u) units.push_back(store.values(u));
  return training_tensors(
      model, WholeState{on_host(units), on_host(optimizer.first_moments()), on_host(optimizer.second_moments())},
      copies);
}

std::vector<TensorBytes> training_tensors(const Model& model, const WholeState& state,
                                          std::vector<at::Tensor>& copies) {
  const ParameterStore& store = model.parameters();
  return tensors_of(model, store.named(state.values), store.named(state.first_moments),
                    store.named(state.second_moments), true, copies);
}

void load_weights(const Checkpoint& checkpoint, Model& model) {
  require_same_model(checkpoint, model.config());
  const at::NoGradGuard no_grad;
  const auto& parameters = model.parameters().layout().parameters;
  for (size_t i = 0; i < parameters.size(); ++i) {
    model.parameters().set_value(i, tensor_of(checkpoint.weights(parameters[i].name), parameters[i].shape));
  }
  for (auto& [name, tensor] : model.named_buffers()) tensor.copy_(tensor_of(checkpoint.weights(name), tensor.sizes()));
  model.parameters().refresh_compute();
}

void load_moments(const Checkpoint& checkpoint, AdamW& optimizer) {
  if (!checkpoint.has_optimizer) {
    throw usage_error(fmt::format("{} holds weights alone, no optimizer state", checkpoint.path().string()),
                      "train from its weights with --weights-only");
  }
  const auto parameters = parameter_specs(checkpoint.meta.model);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto& [name, shape, unit] = parameters[i];
    optimizer.set_moments(i, tensor_of(checkpoint.exp_avg(name), shape), tensor_of(checkpoint.exp_avg_sq(name), shape));
  }
  const Json& state = checkpoint.meta.state;
  if (!state.is_object() || !state.contains("optimizer_lags")) return optimizer.set_lags({});
  optimizer.set_lags(lags_from_json(state["optimizer_lags"], parameters.size(), checkpoint.path().string()));
}

LoadedModel load_model(const fs::path& path, at::Device device, at::ScalarType dtype) {
  const Checkpoint checkpoint = open_checkpoint(path);
  LoadedModel loaded;
  loaded.meta = checkpoint.meta;
  loaded.model = inference_model(checkpoint.meta.model, device, dtype);
  load_weights(checkpoint, *loaded.model);
  return loaded;
}

LoadedModel load_rounded_model(const fs::path& path, at::Device device, at::ScalarType dtype) {
  if (!device.is_cpu() || dtype != at::kBFloat16) return load_model(path, device, dtype);
  LoadedModel loaded = load_model(path, device, at::kFloat);
  for (size_t u = 0; u < loaded.model->parameters().units(); ++u) {
    at::Tensor values = loaded.model->parameters().values(u);
    values.copy_(values.to(dtype));
  }
  return loaded;
}

void require_vocabulary(const Tokenizer& tokenizer, const ModelConfig& model, const std::string& where) {
  if (tokenizer.n_ordinary() == model.vocab_size || tokenizer.n_ids() == model.vocab_size) return;
  throw usage_error(
      fmt::format("the tokenizer {} has {} tokens ({} with special ones), the model {}", where,
                  with_commas(tokenizer.n_ordinary()), with_commas(tokenizer.n_ids()), with_commas(model.vocab_size)),
      "give the one that the model was trained with");
}

Tokenizer load_tokenizer_of(const CheckpointMeta& meta, const std::string& given) {
  std::string path = given;
  if (path.empty()) path = parse_config(meta.config, "the checkpoint's config", "run").tokenizer.path;
  if (path.empty()) throw usage_error("the checkpoint names no tokenizer", "give one with --tokenizer FILE");
  std::error_code ec;
  if (!is_address(path) && !fs::exists(path, ec)) {
    throw usage_error(fmt::format("the tokenizer {} is not there", path), "give its file with --tokenizer FILE");
  }
  Storage storage;
  const Tokenizer tokenizer = load_tokenizer(path, storage);
  if (!meta.tokenizer.empty() && tokenizer.fingerprint() != meta.tokenizer) {
    throw usage_error(
        fmt::format("the tokenizer {} (fingerprint {}) is not the one the checkpoint was trained with ({})", path,
                    tokenizer.fingerprint(), meta.tokenizer),
        "give the right file with --tokenizer FILE");
  }
  if (meta.tokenizer.empty()) require_vocabulary(tokenizer, meta.model, path);
  return tokenizer;
}

}  // namespace mythos
