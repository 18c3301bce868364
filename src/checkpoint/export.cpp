#include "checkpoint/export.h"

#include "base/error.h"
#include "checkpoint/layout.h"
#include "checkpoint/pickle_writer.h"
#include "checkpoint/zip_writer.h"
#include "kernels/rotary.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace mythos {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view bias_before = "recurrent.block.ffn.router.weight";

// A rotary table as the reference keeps it: complex numbers, one row a position.
struct Rotary {
  Rotary(std::string name, int64_t width, const ModelConfig& model) {
    RotaryTable table(width, model.rope_theta, at::kCPU);
    const RotaryTable::Slice rows = table.slice(0, model.max_seq_len);
    const int64_t half = width / 2;
    numbers.resize(static_cast<size_t>(model.max_seq_len * half * 2));
    const auto* c = rows.cos.const_data_ptr<float>();
    const auto* s = rows.sin.const_data_ptr<float>();
    for (size_t i = 0; i < numbers.size() / 2; ++i) {
      numbers[2 * i] = c[i];
      numbers[2 * i + 1] = s[i];
    }
    info = {std::move(name), DType::C64, {model.max_seq_len, half}};
  }
  [[nodiscard]] TensorBytes tensor() const { return {info, std::as_bytes(std::span(numbers))}; }

  TensorInfo info;
  std::vector<float> numbers;
};

// Weights under their bare names.
std::vector<TensorBytes> bare_weights(const ModelState& state) {
  const size_t n = weight_tensors(state.meta.model).size();
  std::vector<TensorBytes> out(state.tensors.begin(), state.tensors.begin() + static_cast<ptrdiff_t>(n));
  for (TensorBytes& t : out) {
    if (t.name.starts_with(model_prefix) && state.has_optimizer) t.name.erase(0, model_prefix.size());
  }
  return out;
}

// In the order of the reference's state_dict; the head is left to the caller.
std::vector<TensorBytes> state_dict(const ModelState& state, const std::vector<Rotary>& rotary) {
  std::vector<TensorBytes> weights = bare_weights(state);
  const auto buffers = static_cast<ptrdiff_t>(parameter_specs(state.meta.model).size());
  const auto router = std::ranges::find(weights, bias_before, &TensorBytes::name);
  std::rotate(router, weights.begin() + buffers, weights.end());
  std::vector<TensorBytes> out;
  for (const Rotary& r : rotary) out.push_back(r.tensor());
  std::move(weights.begin(), weights.end(), std::back_inserter(out));
  return out;
}

std::vector<Rotary> rotary_tables(const ModelConfig& model) {
  std::vector<Rotary> out;
  out.emplace_back("freqs_cis", model.head_dim(), model);
  out.emplace_back("freqs_cis_mla", model.qk_rope_head_dim, model);
  return out;
}

// The pickle and the storages that it names, by number.
class PtWriter {
 public:
  PtWriter(const ModelState& state, const PtOptimizer& optimizer) : state_(state), o_(optimizer) {}

  void write(const fs::path& path) {
    const std::vector<Rotary> rotary = rotary_tables(state_.meta.model);
    const std::vector<TensorBytes> weights = state_dict(state_, rotary);
    p_.begin();
    p_.empty_dict();
    p_.mark();
    p_.text("step");
    p_.integer(state_.meta.step);
    p_.text("model");
    add_model(weights);
    if (state_.has_optimizer) {
      p_.text("optimizer");
      add_optimizer();
    }
    p_.text("cfg");
    add_config();
    p_.text("vocab_size");
    p_.integer(state_.meta.model.vocab_size);
    p_.set_items();
    const std::string pickle = p_.end();

    const std::string folder = path.stem().string() + "/";
    const uint64_t bytes = std::transform_reduce(storages_.begin(), storages_.end(), pickle.size(), std::plus<>(),
                                                 [](const auto& s) { return s.size(); });
    ZipWriter zip(path, bytes);
    zip.add(folder + "data.pkl", pickle);
    zip.add(folder + ".format_version", "1");
    zip.add(folder + ".storage_alignment", "64");
    zip.add(folder + "byteorder", "little");
    for (size_t i = 0; i < storages_.size(); ++i) zip.add(fmt::format("{}data/{}", folder, i), storages_[i]);
    zip.add(folder + "version", "3\n");
    zip.commit();
  }

 private:
  size_t storage(std::span<const std::byte> bytes) {
    storages_.push_back(bytes);
    return storages_.size() - 1;
  }

  void add_model(const std::vector<TensorBytes>& weights) {
    p_.ordered_dict();
    p_.mark();
    const TensorBytes* embed = nullptr;
    size_t embed_storage = 0;
    for (const TensorBytes& t : weights) {
      const size_t key = storage(t.data);
      if (t.name == "embed.weight") {
        embed = &t;
        embed_storage = key;
      }
      p_.text(t.name);
      p_.tensor(t, key);
    }
    p_.text("head.weight");
    p_.tensor(*embed, embed_storage);
    p_.set_items();
  }

  void add_optimizer() {
    const std::vector<ParameterSpec> specs = parameter_specs(state_.meta.model);
    const size_t first = weight_tensors(state_.meta.model).size();
    const Json none = Json::array();
    const Json& meta = state_.meta.state;
    const bool has_lags = meta.is_object() && meta.contains("optimizer_lags");
    const auto lags = lags_from_json(has_lags ? meta["optimizer_lags"] : none, specs.size(), "the checkpoint");
    const int64_t steps = meta.is_object() ? meta.value("optimizer_steps", state_.meta.step) : state_.meta.step;
    steps_.resize(specs.size());
    p_.empty_dict();
    p_.mark();
    p_.text("state");
    p_.empty_dict();
    p_.mark();
    for (size_t i = 0; i < specs.size(); ++i) {
      if (steps - lags[i] <= 0) continue;
      steps_[i] = static_cast<float>(steps - lags[i]);
      p_.integer(static_cast<int64_t>(i));
      p_.empty_dict();
      p_.mark();
      p_.text("step");
      p_.tensor({"step", DType::F32, {}}, storage(std::as_bytes(std::span(&steps_[i], 1))));
      for (const size_t second : {size_t{0}, size_t{1}}) {
        const TensorBytes& t = state_.tensors[first + second * specs.size() + i];
        p_.text(second == 0 ? "exp_avg" : "exp_avg_sq");
        p_.tensor(t, storage(t.data));
      }
      p_.set_items();
    }
    p_.set_items();
    p_.text("param_groups");
    p_.empty_list();
    add_group(specs.size());
    p_.append();
    p_.set_items();
  }

  void add_group(size_t n_parameters) {
    p_.empty_dict();
    p_.mark();
    p_.text("lr");
    p_.real(o_.lr);
    p_.text("betas");
    p_.real(o_.beta1);
    p_.real(o_.beta2);
    p_.tuple(2);
    p_.text("eps");
    p_.real(o_.eps);
    p_.text("weight_decay");
    p_.real(o_.weight_decay);
    for (const char* name : {"amsgrad", "maximize", "capturable", "differentiable"}) {
      p_.text(name);
      p_.boolean(false);
    }
    p_.text("foreach");
    p_.none();
    for (const char* name : {"fused", "decoupled_weight_decay"}) {
      p_.text(name);
      p_.boolean(true);
    }
    p_.text("params");
    p_.empty_list();
    p_.mark();
    for (size_t i = 0; i < n_parameters; ++i) p_.integer(static_cast<int64_t>(i));
    p_.appends();
    p_.set_items();
  }

  void add_config() {
    p_.new_object("open_mythos.main", "MythosConfig");
    p_.empty_dict();
    p_.mark();
    const Json fields = model_to_json(state_.meta.model);
    for (const auto& [name, value] : fields.items()) {
      p_.text(name);
      if (value.is_string()) {
        p_.text(value.get<std::string>());
      } else if (value.is_number_integer()) {
        p_.integer(value.get<int64_t>());
      } else {
        p_.real(value.get<double>());
      }
    }
    p_.set_items();
    p_.build();
  }

  const ModelState& state_;
  const PtOptimizer& o_;
  PickleWriter p_;
  std::vector<std::span<const std::byte>> storages_;
  std::vector<float> steps_;
};

}  // namespace

void export_pt(const ModelState& state, const PtOptimizer& optimizer, const fs::path& path) {
  PtWriter(state, optimizer).write(path);
}

void export_checkpoint(const ModelState& state, const fs::path& path) {
  if (!state.has_optimizer) return export_weights(state, path);
  save_checkpoint(path, state.meta, state.tensors);
}

void export_weights(const ModelState& state, const fs::path& path) {
  write_checked(path, bare_weights(state), to_metadata(state.meta, weights_format));
}

void export_state_dict(const ModelState& state, const fs::path& path) {
  const std::vector<Rotary> rotary = rotary_tables(state.meta.model);
  std::vector<TensorBytes> all = state_dict(state, rotary);
  TensorBytes head = *std::ranges::find(all, "embed.weight", &TensorBytes::name);
  head.name = "head.weight";
  all.push_back(std::move(head));
  write_safetensors(path, all, {{"format", "pt"}, {"model", model_to_json(state.meta.model).dump()}});
}

void export_config(const ModelConfig& model, const fs::path& path) {
  write_file_atomically(path, model_to_json(model).dump(2) + "\n");
}

}  // namespace mythos
