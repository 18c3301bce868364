// Files of other programs as model states.
#include "base/error.h"
#include "base/log.h"
#include "checkpoint/layout.h"
#include "checkpoint/model_state.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <optional>

namespace mythos {
namespace fs = std::filesystem;
namespace {

using Kind = PickleValue::Kind;

// What the bytes of an imported state lie in.
struct Source {
  std::optional<PtFile> pt;
  std::optional<SafetensorsFile> safetensors;
  std::deque<std::vector<std::byte>> copies;
};

// The optimizer's settings as its state_dict has them.
struct OptimizerSettings {
  std::optional<double> lr, beta1, beta2, eps, weight_decay;
};

std::string number_text(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

// As much of a run's configuration as the file tells.
std::string config_text(const ModelConfig& model, const OptimizerSettings& o) {
  std::string out = "[model]\n";
  const Json fields = model_to_json(model);
  for (const auto& [name, value] : fields.items()) {
    out += fmt::format("{} = {}\n", name, value.is_number_float() ? number_text(value.get<double>()) : value.dump());
  }
  std::string train;
  const auto usual = [](double x) { return std::isfinite(x) && x >= 0; };
  if (o.lr && usual(*o.lr) && *o.lr > 0) train += fmt::format("lr = {}\n", number_text(*o.lr));
  if (o.weight_decay && usual(*o.weight_decay))
    train += fmt::format("weight_decay = {}\n", number_text(*o.weight_decay));
  if (o.eps && usual(*o.eps) && *o.eps > 0) train += fmt::format("eps = {}\n", number_text(*o.eps));
  if (o.beta1 && o.beta2) train += fmt::format("betas = [{}, {}]\n", number_text(*o.beta1), number_text(*o.beta2));
  return train.empty() ? out : out + "[train]\n" + train;
}

// A configuration in a file beside the weights, as the reference's dataclass or a hub's config.json has it.
ModelConfig config_beside(const fs::path& path) {
  const fs::path file = (path.has_parent_path() ? path.parent_path() : fs::path(".")) / "config.json";
  std::error_code ec;
  if (!fs::exists(file, ec)) {
    throw usage_error(
        fmt::format("{} does not say of which model it is, and there is no {}", path.string(), file.string()),
        "put a config.json with the fields of the reference's MythosConfig beside it");
  }
  Json fields = parse_json(read_file(file, 1 << 20), file.string());
  if (!fields.is_object()) throw failure(fmt::format("{} is not a JSON object", file.string()));
  for (const char* other : {"architectures", "model_type", "torch_dtype", "dtype", "transformers_version"}) {
    fields.erase(other);
  }
  return model_from_fields(fields, file.string());
}

class PtImport {
 public:
  explicit PtImport(const fs::path& path) : source_(std::make_shared<Source>()), path_(path), where_(path.string()) {
    file_ = &source_->pt.emplace(path);
  }

  ModelState read() {
    const PickleValue& root = file_->root();
    if (root.kind != Kind::dict) throw bad(fmt::format("it holds {}, not a dict", kind_name(root.kind)));
    const PickleValue* weights = find(root, "model");
    const PickleValue* state_dict = find(root, "state_dict");
    if (weights == nullptr) weights = state_dict != nullptr ? state_dict : &root;
    auto found = tensors_of(*weights);
    if (found.empty()) throw bad("it holds no state_dict: neither \"model\" nor tensors by name");
    file_->check();
    const PickleValue* cfg = find(root, "cfg");
    const ModelConfig model = cfg != nullptr ? config_of(*cfg) : config_beside(path_);
    if (const PickleValue* vocab = find(root, "vocab_size"); vocab != nullptr) {
      if (integer(*vocab, "vocab_size") != model.vocab_size) {
        throw bad(fmt::format("its vocab_size is {}, that of its cfg {}", vocab->integer, model.vocab_size));
      }
    }
    ModelState state;
    state.meta.model = model;
    if (const PickleValue* step = find(root, "step"); step != nullptr) state.meta.step = integer(*step, "step");
    state.meta.program = "imported";
    state.meta.state = {{"imported", path_.filename().string()}};
    state.tensors = adopt_weights(std::move(found), model, where_, source_->copies);
    if (const PickleValue* optimizer = find(root, "optimizer"); optimizer != nullptr && optimizer->kind != Kind::none) {
      add_optimizer(*optimizer, state);
    }
    state.meta.config = config_text(model, settings_);
    state.source = source_;
    return state;
  }

 private:
  using Values = std::map<std::string, TensorBytes>;

  [[nodiscard]] FormatError bad(const std::string& why) const {
    return FormatError(fmt::format("{} is not a checkpoint of the reference: {}", where_, why));
  }
  [[nodiscard]] const PickleValue* find(const PickleValue& dict, std::string_view key) const {
    return file_->pickle().find(dict, key);
  }
  [[nodiscard]] int64_t integer(const PickleValue& value, std::string_view what) const {
    const double n = file_->number(value, fmt::format("its {}", what));
    if (!(n >= 0 && n < 9e15) || n != std::floor(n)) throw bad(fmt::format("its {} is {}", what, n));
    return static_cast<int64_t>(n);
  }
  template <class Visit>
  void each_item(const PickleValue& dict, Visit&& visit) const {
    for (size_t i = 0; i + 1 < dict.items.size(); i += 2) {
      visit(file_->pickle()[dict.items[i]], file_->pickle()[dict.items[i + 1]]);
    }
  }

  [[nodiscard]] Values tensors_of(const PickleValue& dict) {
    Values out;
    if (dict.kind != Kind::dict) throw bad(fmt::format("its model is {}, not a dict", kind_name(dict.kind)));
    each_item(dict, [&](const PickleValue& key, const PickleValue& value) {
      if (key.kind == Kind::text && value.kind == Kind::tensor) out[key.text] = tensor(key.text, value);
    });
    return out;
  }
  [[nodiscard]] TensorBytes tensor(const std::string& name, const PickleValue& value) {
    return {{name, file_->dtype(value), value.shape}, file_->bytes(value, source_->copies)};
  }

  [[nodiscard]] ModelConfig config_of(const PickleValue& cfg) const {
    if (cfg.kind != Kind::object && cfg.kind != Kind::dict)
      throw bad(fmt::format("its cfg is {}", kind_name(cfg.kind)));
    Json fields = Json::object();
    each_item(cfg, [&](const PickleValue& key, const PickleValue& value) {
      if (key.kind != Kind::text || fields.size() > 100) throw bad("its cfg is not made of named fields");
      switch (value.kind) {
        case Kind::integer:
          fields[key.text] = value.integer;
          break;
        case Kind::real:
          fields[key.text] = value.real;
          break;
        case Kind::text:
          fields[key.text] = value.text;
          break;
        default:
          throw bad(fmt::format("its cfg has {} as {}", kind_name(value.kind), shown_name(key.text)));
      }
    });
    return model_from_fields(fields, where_);
  }

  // The parameters' numbers in the optimizer are their places in the model, as long as there is one group of them.
  void read_group(const PickleValue& optimizer, size_t n_parameters) {
    const PickleValue* groups = find(optimizer, "param_groups");
    if (groups == nullptr || groups->kind != Kind::list) throw bad("its optimizer has no param_groups");
    if (groups->items.size() != 1) {
      throw failure(fmt::format("{}: its optimizer has {} groups of parameters, and which is which cannot be told",
                                where_, groups->items.size()),
                    "its weights can be used alone: --weights-only");
    }
    const PickleValue& group = file_->pickle()[groups->items[0]];
    if (const auto* params = find(group, "params"); params == nullptr || params->items.size() != n_parameters) {
      throw bad(fmt::format("its optimizer has {} parameters, its model {}",
                            params == nullptr ? 0 : params->items.size(), n_parameters));
    }
    const auto setting = [&](const char* name) -> std::optional<double> {
      const auto* value = find(group, name);
      if (value == nullptr) return std::nullopt;
      return file_->number(*value, fmt::format("its optimizer's {}", name));
    };
    settings_.lr = setting("lr");
    settings_.eps = setting("eps");
    settings_.weight_decay = setting("weight_decay");
    if (const auto* betas = find(group, "betas"); betas != nullptr && betas->items.size() == 2) {
      settings_.beta1 = file_->number(file_->pickle()[betas->items[0]], "its optimizer's beta");
      settings_.beta2 = file_->number(file_->pickle()[betas->items[1]], "its optimizer's beta");
    }
    if (const auto* amsgrad = find(group, "amsgrad"); amsgrad != nullptr && amsgrad->integer != 0) {
      throw failure(fmt::format("{}: its optimizer is AMSGrad, which is not trained with here", where_),
                    "its weights can be used alone: --weights-only");
    }
  }

  [[nodiscard]] size_t index_of(const PickleValue& key, const std::vector<ParameterSpec>& specs) const {
    if (key.kind == Kind::integer && key.integer >= 0 && key.integer < static_cast<int64_t>(specs.size())) {
      return static_cast<size_t>(key.integer);
    }
    if (key.kind == Kind::integer) {
      throw bad(fmt::format("its optimizer has a state {}, its model {} parameters", key.integer, specs.size()));
    }
    throw bad(fmt::format("its optimizer's states are by {}, not by number", kind_name(key.kind)));
  }

  // A moment of parameter `spec`, F32; zeros where the state has none.
  TensorBytes moment(std::string_view prefix, const ParameterSpec& spec, const PickleValue* value) {
    TensorBytes out{{std::string(prefix) + spec.name, DType::F32, spec.shape}, {}};
    if (value == nullptr) {
      const auto bytes = static_cast<size_t>(spec.numel()) * sizeof(float);
      if (zeros_.size() < bytes) zeros_ = source_->copies.emplace_back(bytes);
      out.data = zeros_.first(bytes);
      return out;
    }
    if (value->kind != Kind::tensor) {
      throw bad(fmt::format("its optimizer's state of {} is {}", spec.name, kind_name(value->kind)));
    }
    const TensorBytes there = tensor(out.name, *value);
    if (there.shape != spec.shape) {
      throw FormatError(fmt::format("{}: {} is [{}], and its parameter [{}]", where_, shown_name(out.name),
                                    fmt::join(there.shape, ", "), fmt::join(spec.shape, ", ")));
    }
    out.data = as_f32(there, where_, source_->copies);
    return out;
  }

  void add_optimizer(const PickleValue& optimizer, ModelState& state) {
    const size_t n_weights = state.tensors.size();
    const std::vector<ParameterSpec> specs = parameter_specs(state.meta.model);
    read_group(optimizer, specs.size());
    const PickleValue* states = find(optimizer, "state");
    if (states == nullptr || states->kind != Kind::dict) throw bad("its optimizer has no state");
    std::vector<const PickleValue*> by_index(specs.size(), nullptr);
    each_item(*states,
              [&](const PickleValue& key, const PickleValue& value) { by_index[index_of(key, specs)] = &value; });
    std::vector<int64_t> steps(specs.size(), 0);
    std::vector<TensorBytes> second;
    for (size_t i = 0; i < specs.size(); ++i) {
      const PickleValue* of = by_index[i];
      const PickleValue* parts[3] = {nullptr, nullptr, nullptr};
      if (of != nullptr) {
        constexpr const char* names[3] = {"step", "exp_avg", "exp_avg_sq"};
        for (int p = 0; p < 3; ++p) {
          parts[p] = find(*of, names[p]);
          if (parts[p] == nullptr)
            throw bad(fmt::format("its optimizer's state of {} has no {}", specs[i].name, names[p]));
        }
        steps[i] = integer(*parts[0], fmt::format("optimizer's step of {}", specs[i].name));
      }
      state.tensors.push_back(moment(exp_avg_prefix, specs[i], parts[1]));
      second.push_back(moment(exp_avg_sq_prefix, specs[i], parts[2]));
    }
    std::move(second.begin(), second.end(), std::back_inserter(state.tensors));
    const int64_t most = *std::ranges::max_element(steps);
    state.meta.state["optimizer_steps"] = most;
    for (int64_t& s : steps) s = most - s;
    if (Json lags = lags_to_json(steps); !lags.empty()) state.meta.state["optimizer_lags"] = std::move(lags);
    for (size_t i = 0; i < n_weights; ++i) state.tensors[i].name.insert(0, model_prefix);
    state.has_optimizer = true;
  }

  std::shared_ptr<Source> source_;
  fs::path path_;
  std::string where_;
  const PtFile* file_ = nullptr;
  OptimizerSettings settings_;
  std::span<const std::byte> zeros_;
};

}  // namespace

ModelState import_pt(const fs::path& path) { return PtImport(path).read(); }

ModelState import_safetensors(const fs::path& path) {
  auto source = std::make_shared<Source>();
  const SafetensorsFile& file = source->safetensors.emplace(SafetensorsFile::open(path));
  std::map<std::string, TensorBytes> found;
  for (const auto& e : file.entries()) found[e.name] = {e, file.data(e)};
  ModelState state;
  const auto model = file.metadata().find("model");
  state.meta.model = model != file.metadata().end()
                         ? model_from_fields(parse_json(model->second, path.string()), path.string())
                         : config_beside(path);
  state.meta.program = "imported";
  state.meta.state = {{"imported", path.filename().string()}};
  state.meta.config = config_text(state.meta.model, {});
  state.tensors = adopt_weights(std::move(found), state.meta.model, path.string(), source->copies);
  state.source = std::move(source);
  return state;
}

}  // namespace mythos
