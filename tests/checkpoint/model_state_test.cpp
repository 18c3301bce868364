// A model's state from the reference's own checkpoint and back, and what is refused on the way.
#include "checkpoint/export.h"
#include "kernels/rotary.h"
#include "pt_testing.h"

#include <cstring>

namespace mythos {
namespace {

using namespace testing;

constexpr const char* golden_pt = MYTHOS_TEST_DIR "/golden/mla_step_0000600.pt";

const TensorBytes* tensor(const ModelState& state, std::string_view name) {
  for (const TensorBytes& t : state.tensors) {
    if (t.name == name) return &t;
  }
  return nullptr;
}

bool same(const ModelState& a, const ModelState& b) {
  if (a.tensors.size() != b.tensors.size() || a.has_optimizer != b.has_optimizer) return false;
  for (size_t i = 0; i < a.tensors.size(); ++i) {
    const TensorBytes& x = a.tensors[i];
    const TensorBytes& y = b.tensors[i];
    if (x.name != y.name || x.shape != y.shape || !std::ranges::equal(x.data, y.data)) return false;
  }
  return true;
}

class ModelStateTest : public CheckpointTest {
 protected:
  /// A .safetensors file of the golden weights as another program would write them, changed by `change`.
  [[nodiscard]] std::string said(const std::function<void(std::vector<TensorBytes>&)>& change) const {
    const ModelState state = import_pt(golden_pt);
    std::vector<TensorBytes> tensors(
        state.tensors.begin(), state.tensors.begin() + static_cast<ptrdiff_t>(weight_tensors(state.meta.model).size()));
    for (TensorBytes& t : tensors) t.name.erase(0, model_prefix.size());
    change(tensors);
    write_safetensors(root_ / "w.safetensors", tensors, {{"model", model_to_json(state.meta.model).dump()}});
    return error_line([&] { import_safetensors(root_ / "w.safetensors"); });
  }
  static TensorBytes& named(std::vector<TensorBytes>& all, std::string_view name) {
    return *std::ranges::find(all, name, &TensorBytes::name);
  }
  static void expect_within(const std::string& line, std::string_view part) {
    EXPECT_NE(line.find(part), std::string::npos) << line;
  }
};

TEST_F(ModelStateTest, TheReferencesCheckpointIsRead) {
  const ModelState state = import_pt(golden_pt);
  EXPECT_TRUE(state.has_optimizer);
  EXPECT_EQ(state.meta.step, 600);
  EXPECT_EQ(state.meta.model.dim, 32);
  EXPECT_EQ(state.meta.model.vocab_size, 97);
  EXPECT_EQ(state.meta.model.rope_theta, 500000.0);
  EXPECT_TRUE(is_imported(state.meta));
  // All of its states were updated once, but those of an expert that no token chose.
  EXPECT_EQ(state.meta.state["optimizer_steps"], 1);
  const auto specs = parameter_specs(state.meta.model);
  const auto lags = lags_from_json(state.meta.state["optimizer_lags"], specs.size(), "it");
  for (size_t i = 0; i < specs.size(); ++i) {
    const bool never = specs[i].name.starts_with("recurrent.block.ffn.routed_experts.5.");
    EXPECT_EQ(lags[i], never ? 1 : 0) << specs[i].name;
    const auto* m = tensor(state, std::string(exp_avg_prefix) + specs[i].name);
    ASSERT_NE(m, nullptr) << specs[i].name;
    const bool zero = std::ranges::all_of(m->data, [](std::byte b) { return b == std::byte{0}; });
    EXPECT_EQ(zero, never) << specs[i].name;
  }
  EXPECT_EQ(tensor(state, "model.head.weight"), nullptr);
  EXPECT_NE(tensor(state, "model.recurrent.block.ffn.router_bias"), nullptr);
}

TEST_F(ModelStateTest, ThereAndBackIsExact) {
  const ModelState first = import_pt(golden_pt);
  export_checkpoint(first, root_ / "a.safetensors");
  const ModelState second = state_of(Checkpoint::open(root_ / "a.safetensors"));
  EXPECT_TRUE(same(first, second));
  EXPECT_EQ(second.meta.step, 600);
  export_pt(second, {}, root_ / "b.pt");
  const ModelState third = import_pt(root_ / "b.pt");
  EXPECT_TRUE(same(first, third));
  EXPECT_EQ(third.meta.state["optimizer_lags"], first.meta.state["optimizer_lags"]);
  EXPECT_EQ(third.meta.model, first.meta.model);
  // Through a nameless copy too.
  const Checkpoint copy = as_checkpoint(first, golden_pt);
  EXPECT_TRUE(copy.has_optimizer);
  EXPECT_EQ(copy.path(), golden_pt);
  EXPECT_TRUE(std::ranges::equal(copy.weights("embed.weight"), tensor(first, "model.embed.weight")->data));
}

TEST_F(ModelStateTest, RotaryTablesAreThoseOfTheReference) {
  export_pt(import_pt(golden_pt), {}, root_ / "b.pt");
  const PtFile theirs(golden_pt);
  const PtFile ours(root_ / "b.pt");
  std::deque<std::vector<std::byte>> copies;
  std::vector<std::string> names[2];
  const PtFile* files[2] = {&theirs, &ours};
  for (int k = 0; k < 2; ++k) {
    const PickleValue& model = *files[k]->pickle().find(files[k]->root(), "model");
    for (size_t i = 0; i < model.items.size(); i += 2) names[k].push_back(files[k]->pickle()[model.items[i]].text);
  }
  EXPECT_EQ(names[0], names[1]);  // every name of its state_dict, in its order
  for (const std::string& name : names[0]) {
    std::span<const std::byte> bytes[2];
    for (int k = 0; k < 2; ++k) {
      const PickleValue& model = *files[k]->pickle().find(files[k]->root(), "model");
      bytes[k] = files[k]->bytes(*files[k]->pickle().find(model, name), copies);
    }
    if (!name.starts_with("freqs_cis")) {
      EXPECT_TRUE(std::ranges::equal(bytes[0], bytes[1])) << name;
      continue;
    }
    // Ours are correctly rounded, PyTorch's sine is one unit in the last place off now and then.
    ASSERT_EQ(bytes[0].size(), bytes[1].size());
    for (size_t i = 0; i < bytes[0].size(); i += sizeof(float)) {
      float a = 0;
      float b = 0;
      std::memcpy(&a, bytes[0].data() + i, sizeof(a));
      std::memcpy(&b, bytes[1].data() + i, sizeof(b));
      EXPECT_FLOAT_EQ(a, b) << name;
    }
  }
  // The head is not written twice.
  const auto* head = ours.pickle().find(*ours.pickle().find(ours.root(), "model"), "head.weight");
  const auto* embed = ours.pickle().find(*ours.pickle().find(ours.root(), "model"), "embed.weight");
  EXPECT_EQ(ours.pickle()[head->items[0]].text, ours.pickle()[embed->items[0]].text);
}

// C10: the head is the embedding, whether it is written once or twice.
TEST_F(ModelStateTest, C10TiedHeads) {
  const ModelState state = import_pt(golden_pt);
  export_weights(state, root_ / "once.safetensors");
  export_state_dict(state, root_ / "both.safetensors");
  EXPECT_EQ(SafetensorsFile::open(root_ / "once.safetensors").find("head.weight"), nullptr);
  const auto both = SafetensorsFile::open(root_ / "both.safetensors");
  EXPECT_TRUE(has_tied_head(both));
  EXPECT_EQ(both.at("freqs_cis").dtype, DType::C64);
  EXPECT_EQ(both.at("freqs_cis_mla").shape, (std::vector<int64_t>{64, 4}));
  EXPECT_TRUE(same(read_model_state(root_ / "once.safetensors"), read_model_state(root_ / "both.safetensors")));
  EXPECT_EQ(said([&](auto& t) {
              t.push_back(named(t, "embed.weight"));
              t.back().name = "head.weight";
            }),
            "no error");
  std::vector<std::byte> other;
  expect_within(said([&](auto& t) {
                  t.push_back(named(t, "embed.weight"));
                  t.back().name = "head.weight";
                  other.assign(t.back().data.begin(), t.back().data.end());
                  other[7] ^= std::byte{1};
                  t.back().data = other;
                }),
                "that differ");
}

TEST_F(ModelStateTest, MissingSurplusAndWrongTensorsAreNamed) {
  expect_within(said([](auto& t) { std::erase_if(t, [](const auto& x) { return x.name == "norm.weight"; }); }),
                "it lacks 'norm.weight'");
  expect_within(said([](auto& t) {
                  t.push_back(named(t, "norm.weight"));
                  t.back().name = "norm.bias";
                }),
                "it has 'norm.bias', which the model has not");
  const std::string line = said([](auto& t) {
    named(t, "norm.weight").shape = {4, 8};
    named(t, "coda.0.ffn_norm.weight").name = "coda.0.gn.weight";
  });
  expect_within(line, "'norm.weight' is [4, 8], and its configuration makes it [32]");
  expect_within(line, "it lacks 'coda.0.ffn_norm.weight'");
  expect_within(line, "it has 'coda.0.gn.weight'");
  expect_within(said([](auto& t) {
                  auto& x = named(t, "norm.weight");
                  x.dtype = DType::I32;
                }),
                "'norm.weight' is of I32");
  EXPECT_EQ(said([](auto& t) { std::erase_if(t, [](const auto& x) { return x.name.ends_with("router_bias"); }); }),
            "no error");
  EXPECT_EQ(said([](auto& t) {
              for (auto& x : t) x.name = "_orig_mod." + x.name;
            }),
            "no error");
}

TEST_F(ModelStateTest, HalfWidthNumbersBecomeFullOnes) {
  const std::vector<uint16_t> half = {0x3C00, 0xC000, 0x0001, 0x7BFF, 0x0400, 0x8000};
  const std::vector<uint16_t> brain = {0x3F80, 0xC000, 0x0001, 0x7F7F, 0x0080, 0x8000};
  std::deque<std::vector<std::byte>> copies;
  const auto convert = [&](DType dtype, const auto& values) {
    const auto bytes =
        as_f32({{"x", dtype, {static_cast<int64_t>(values.size())}}, std::as_bytes(std::span(values))}, "it", copies);
    std::vector<float> out(values.size());
    std::memcpy(out.data(), bytes.data(), bytes.size());
    return out;
  };
  EXPECT_EQ(convert(DType::F16, half), (std::vector<float>{1, -2, 0x1p-24F, 65504, 0x1p-14F, -0.0F}));
  EXPECT_EQ(convert(DType::BF16, brain), (std::vector<float>{1, -2, 0x1p-133F, 0x1.fep127F, 0x1p-126F, -0.0F}));
  EXPECT_EQ(convert(DType::F64, std::vector<double>{0.5, 1e300}).front(), 0.5F);
}

TEST_F(ModelStateTest, ConfigurationsAreChecked) {
  Json fields = model_to_json(small_model());
  EXPECT_EQ(model_from_fields(fields, "it"), small_model());
  fields.erase("dropout");
  EXPECT_EQ(model_from_fields(fields, "it"), small_model());
  fields["n_layers"] = 3;
  expect_within(error_line([&] { model_from_fields(fields, "it"); }), "n_layers");
  fields.erase("n_layers");
  fields["dim"] = "8";
  expect_within(error_line([&] { model_from_fields(fields, "it"); }), "wrong dim");
  expect_within(error_line([&] { import_pt(MYTHOS_TEST_DIR "/checkpoint/pt/protocol_2.pt"); }), "config.json");
}

TEST_F(ModelStateTest, LagsSurviveTheirShortForm) {
  const std::vector<int64_t> lags = {0, 0, 3, 3, 3, 0, 7};
  const Json json = lags_to_json(lags);
  EXPECT_EQ(json.size(), 2U);
  EXPECT_EQ(lags_from_json(json, lags.size(), "it"), lags);
  EXPECT_TRUE(lags_to_json({0, 0}).empty());
  for (const char* bad :
       {"{}", "[1]", "[[1,2]]", "[[0,8,1]]", "[[8,0,1]]", "[[0,1,-1]]", "[[0,18446744073709551615,1]]"}) {
    EXPECT_NE(error_line([&] { lags_from_json(Json::parse(bad), lags.size(), "it"); }), "no error") << bad;
  }
}

TEST_F(ModelStateTest, InspectingAPtFileReadsNoTensors) {
  const std::string whole = read_file(golden_pt);
  std::string damaged = whole;
  const size_t at = whole.find("mla_step_0000600/data/2") + 200;
  damaged[at] = static_cast<char>(damaged[at] ^ 1);
  write_bytes(root_ / "x.pt", damaged);
  const Json json = describe(root_ / "x.pt");
  EXPECT_EQ(json["kind"], "pt");
  EXPECT_EQ(json["step"], 600);
  EXPECT_EQ(json["parameters"], parameter_count(import_pt(golden_pt).meta.model));
  EXPECT_EQ(json["cfg"]["attn_type"], "mla");
  EXPECT_EQ(json["optimizer"]["states"], 72);
  EXPECT_EQ(json["tensors"], 79);
  EXPECT_NE(error_line([&] { import_pt(root_ / "x.pt"); }), "no error");  // but using it does
}

}  // namespace
}  // namespace mythos
