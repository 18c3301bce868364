#include "checkpoint/describe_pt.h"

#include "checkpoint/pt_file.h"

#include <map>

namespace mythos {
namespace {

using Kind = PickleValue::Kind;

// A plain value, or what it is.
Json plain(const PtFile& file, const PickleValue& value) {
  switch (value.kind) {
    case Kind::none:
      return nullptr;
    case Kind::boolean:
      return value.integer != 0;
    case Kind::integer:
      return value.integer;
    case Kind::real:
      return value.real;
    case Kind::text:
      return value.text;
    case Kind::tensor:
      if (value.shape.empty()) return file.number(value, "a number");
      break;
    default:
      break;
  }
  return fmt::format("{}", kind_name(value.kind));
}

const PickleValue* find_weights(const PtFile& file) {
  for (const char* key : {"model", "state_dict"}) {
    const PickleValue* found = file.pickle().find(file.root(), key);
    if (found != nullptr && found->kind == Kind::dict) return found;
  }
  return &file.root();
}

}  // namespace

Json describe_pt(const std::filesystem::path& path) {
  const PtFile file(path);
  const Pickle& pickle = file.pickle();
  const auto at = [&](PickleValue::Ref ref) -> const PickleValue& { return pickle[ref]; };
  Json table = Json::array();
  std::map<std::string, int64_t> dtypes;
  int64_t numbers = 0;
  const PickleValue* weights = find_weights(file);
  for (size_t i = 0; i + 1 < weights->items.size(); i += 2) {
    const PickleValue& name = at(weights->items[i]);
    const PickleValue& value = at(weights->items[i + 1]);
    if (name.kind != Kind::text || value.kind != Kind::tensor) continue;
    table.push_back({{"name", name.text}, {"dtype", to_string(file.dtype(value))}, {"shape", value.shape}});
    ++dtypes[std::string(to_string(file.dtype(value)))];
    const std::string_view n = name.text;
    if (n != "head.weight" && n.find("freqs_cis") == std::string_view::npos && !n.ends_with("router_bias")) {
      numbers += TensorInfo{"", file.dtype(value), value.shape}.numel();
    }
  }
  Json out;
  out["path"] = path.string();
  out["kind"] = "pt";
  out["bytes"] = file.file_bytes();
  out["tensors"] = table.size();
  out["parameters"] = numbers;
  out["dtypes"] = dtypes;
  Json others = Json::array();
  constexpr size_t most_others = 100;
  const PickleValue& root = file.root();
  for (size_t i = 0; weights != &root && root.kind == Kind::dict && i + 1 < root.items.size(); i += 2) {
    const PickleValue& key = at(root.items[i]);
    const PickleValue& value = at(root.items[i + 1]);
    if (key.kind != Kind::text || &value == weights) continue;
    if (key.text == "step" || key.text == "vocab_size") {
      out[key.text] = plain(file, value);
    } else if (key.text == "cfg") {
      Json cfg = Json::object();
      for (size_t f = 0; f + 1 < value.items.size() && f < 2 * most_others; f += 2) {
        if (at(value.items[f]).kind == Kind::text) cfg[at(value.items[f]).text] = plain(file, at(value.items[f + 1]));
      }
      out["cfg"] = std::move(cfg);
    } else if (key.text == "optimizer") {
      const auto count = [&](const char* name) -> size_t {
        const PickleValue* v = pickle.find(value, name);
        return v == nullptr ? 0 : v->items.size();
      };
      out["optimizer"] = {{"states", count("state") / 2}, {"groups", count("param_groups")}};
    } else if (others.size() < most_others) {
      others.push_back(key.text);
    }
  }
  if (!others.empty()) out["others"] = std::move(others);
  out["tensor_table"] = std::move(table);
  return out;
}

}  // namespace mythos
