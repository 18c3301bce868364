#include "checkpoint/checkpoint.h"

#include "checkpoint/checked_file.h"
#include "support.h"

#include <cmath>
#include <limits>

namespace mythos {
namespace {
using namespace mythos::testing;

TEST_F(CheckpointTest, SizeIsKnownBeforehandToTheByte) {
  const fs::path path = root_ / "c.safetensors";
  for (const auto type : {AttentionType::mla, AttentionType::gqa}) {
    for (const int64_t experts : {1, 7}) {
      CheckpointMeta meta = small_meta(3);
      meta.model.attn_type = type;
      meta.model.n_experts = experts;
      const Numbers numbers(1, meta.model);
      save_checkpoint(path, meta, numbers.tensors);
      EXPECT_EQ(static_cast<int64_t>(fs::file_size(path)), checkpoint_bytes(meta.model));
      // Nothing that is saved with it changes its size.
      meta.step = INT64_MAX;
      meta.config = std::string(60'000, 'x');
      meta.data = Json{{"lanes", std::vector<int>(5000, 123456)}};
      save_checkpoint(path, meta, numbers.tensors);
      EXPECT_EQ(static_cast<int64_t>(fs::file_size(path)), checkpoint_bytes(meta.model));
    }
  }
  // What does not fit its room is saved all the same, and told.
  CheckpointMeta meta = small_meta(3);
  meta.config = std::string(300'000, '"');
  save_checkpoint(path, meta, Numbers(1).tensors);
  EXPECT_GT(static_cast<int64_t>(fs::file_size(path)), checkpoint_bytes(meta.model));
  EXPECT_NE(logged().find("larger than foreseen"), std::string::npos);
  const Checkpoint back = Checkpoint::open(path);
  back.verify();
  EXPECT_EQ(back.meta.config, meta.config);
}

TEST_F(CheckpointTest, SizesOfThePresets) {
  ModelConfig m = preset("mythos_300m");
  m.vocab_size = 199'998;
  ASSERT_EQ(parameter_count(m), 339'241'922);
  // Weights and two moments in F32, the router bias, and a header that begins the data at a multiple of 64 KiB.
  const int64_t data = int64_t{339'241'922} * 12 + 32 * 4;
  const int64_t header = checkpoint_bytes(m) - data;
  EXPECT_EQ(header % 65'536, 0);
  EXPECT_GE(header, 131'072);
  EXPECT_LE(header, 512 << 10);
  EXPECT_NEAR(static_cast<double>(checkpoint_bytes(m)), 4.07e9, 0.005e9);
  for (const std::string& name : preset_names()) {
    const ModelConfig p = preset(name);
    EXPECT_GT(checkpoint_bytes(p), parameter_count(p) * 12) << name;
    EXPECT_LT(checkpoint_bytes(p), parameter_count(p) * 12 + (8 << 20)) << name;
  }
}

TEST_F(CheckpointTest, EverythingComesBack) {
  const fs::path path = root_ / "c.safetensors";
  const Numbers numbers(1);
  const CheckpointMeta meta = small_meta(600);
  save_checkpoint(path, meta, numbers.tensors);
  const Checkpoint c = Checkpoint::open(path);
  c.verify();
  EXPECT_TRUE(c.has_optimizer);
  EXPECT_TRUE(holds(c, numbers));
  EXPECT_EQ(c.meta.step, meta.step);
  EXPECT_EQ(c.meta.tokens, meta.tokens);
  EXPECT_EQ(c.meta.model, meta.model);
  EXPECT_EQ(c.meta.config, meta.config);
  EXPECT_EQ(c.meta.tokenizer, meta.tokenizer);
  EXPECT_EQ(c.meta.seed, meta.seed);
  EXPECT_EQ(c.meta.data, meta.data);
  EXPECT_EQ(c.meta.state, meta.state);
  EXPECT_EQ(c.meta.program, meta.program);
  EXPECT_EQ(c.meta.libtorch, meta.libtorch);
  EXPECT_EQ(c.meta.host, meta.host);
  EXPECT_EQ(c.meta.device, meta.device);
  EXPECT_EQ(c.meta.created, meta.created);
  EXPECT_EQ(c.weights("embed.weight").size(), 13U * 8 * 4);
  EXPECT_EQ(c.exp_avg("norm.weight").size(), 8U * 4);
  EXPECT_EQ(c.weights("recurrent.block.ffn.router_bias").size(), 2U * 4);
  EXPECT_THROW((void)c.exp_avg_sq("recurrent.block.ffn.router_bias"), FormatError);

  // The same state is the same file.
  const std::string first = read_file(path);
  save_checkpoint(path, meta, numbers.tensors);
  EXPECT_EQ(read_file(path), first);
}

TEST_F(CheckpointTest, TheTimeIsFilledIn) {
  CheckpointMeta meta = small_meta(1);
  meta.created = "";
  save_checkpoint(root_ / "c", meta, Numbers(1).tensors);
  const std::string created = Checkpoint::open(root_ / "c").meta.created;
  EXPECT_EQ(created.size(), 20U);
  EXPECT_EQ(created.substr(0, 2), "20");
  EXPECT_EQ(created.back(), 'Z');
}

// A model's fields survive, among them numbers without a short binary form.
TEST_F(CheckpointTest, ModelsSurvive) {
  for (const std::string& name : preset_names()) {
    ModelConfig m = preset(name);
    m.act_threshold = 1.0 / 3;
    m.attn_type = AttentionType::gqa;
    EXPECT_EQ(model_from_json(parse_json(model_to_json(m).dump(), "x"), "x"), m);
  }
  Json json = model_to_json(small_model());
  json.erase("dim");
  EXPECT_EQ(error_line([&] { model_from_json(json, "f"); }), "the model in f lacks dim");
  json = model_to_json(small_model());
  json["n_heads"] = "2";
  EXPECT_EQ(error_line([&] { model_from_json(json, "f"); }), "the model in f has a wrong n_heads");
  json["n_heads"] = 18446744073709551615U;
  EXPECT_EQ(error_line([&] { model_from_json(json, "f"); }), "the model in f has a wrong n_heads");
  json["n_heads"] = 3;
  EXPECT_NE(error_line([&] { model_from_json(json, "f"); }).find("impossible"), std::string::npos);
  json["n_heads"] = 2;
  json["bias"] = true;
  EXPECT_NE(error_line([&] { model_from_json(json, "f"); }).find("not known here"), std::string::npos);
}

TEST_F(CheckpointTest, AnotherModelIsRefusedByItsFields) {
  save_checkpoint(root_ / "c", small_meta(1), Numbers(1).tensors);
  const Checkpoint c = Checkpoint::open(root_ / "c");
  EXPECT_NO_THROW(require_same_model(c, small_model()));
  ModelConfig other = small_model();
  other.dim = 16;
  other.rope_theta = 1e4;
  const std::string line = error_line([&] { require_same_model(c, other); });
  EXPECT_NE(line.find("dim is 8 there, 16 here; rope_theta is 500000.0 there, 10000.0 here"), std::string::npos)
      << line;
}

TEST_F(CheckpointTest, TensorsOfAnotherModelAreNotSaved) {
  const fs::path path = root_ / "c";
  Numbers numbers(1);
  std::swap(numbers.tensors[1], numbers.tensors[2]);
  EXPECT_THROW(save_checkpoint(path, small_meta(1), numbers.tensors), Error);
  std::swap(numbers.tensors[1], numbers.tensors[2]);
  numbers.tensors[0].shape = {8, 13};
  EXPECT_THROW(save_checkpoint(path, small_meta(1), numbers.tensors), Error);
  numbers.tensors[0].shape = {13, 8};
  numbers.tensors.pop_back();
  EXPECT_THROW(save_checkpoint(path, small_meta(1), numbers.tensors), Error);
  EXPECT_FALSE(fs::exists(path));
}

// Weights or moments that are not finite never replace good ones.
TEST_F(CheckpointTest, C6NothingIsSavedThatIsNotFinite) {
  const fs::path path = root_ / "c.safetensors";
  save_checkpoint(path, small_meta(1), Numbers(1).tensors);
  const std::string before = read_file(path);
  const float inf = std::numeric_limits<float>::infinity();
  for (const float bad : {std::nanf(""), -std::nanf("7"), inf, -inf}) {
    for (const size_t tensor : {size_t{0}, Numbers(2).tensors.size() - 1}) {
      Numbers numbers(2);
      numbers.values[tensor].back() = bad;
      const std::string line = error_line([&] { save_checkpoint(path, small_meta(2), numbers.tensors); });
      EXPECT_NE(line.find(fmt::format("tensor '{}' has 1 numbers of {} that are not finite, the first at {}",
                                      numbers.tensors[tensor].name, numbers.values[tensor].size(),
                                      numbers.values[tensor].size() - 1)),
                std::string::npos)
          << line;
    }
  }
  EXPECT_EQ(read_file(path), before);
  // The largest and the smallest numbers are fine.
  Numbers numbers(2);
  numbers.values[0] = std::vector<float>(numbers.values[0].size(), std::numeric_limits<float>::max());
  numbers.values[1] = std::vector<float>(numbers.values[1].size(), -std::numeric_limits<float>::denorm_min());
  for (size_t i = 0; i < 2; ++i) numbers.tensors[i].data = std::as_bytes(std::span(numbers.values[i]));
  EXPECT_NO_THROW(save_checkpoint(path, small_meta(2), numbers.tensors));
}

// Any one flipped bit, wherever it is: in the length, the checksums, the text, the padding or the numbers.
TEST_F(CheckpointTest, EveryFlippedBitIsFound) {
  const fs::path path = root_ / "c.safetensors";
  save_checkpoint(path, small_meta(1), Numbers(1).tensors);
  const uint64_t size = fs::file_size(path);
  const uint64_t data_begin = SafetensorsFile::open(path).data_begin();
  const auto found = [&] {
    try {
      Checkpoint::open(path).verify();
    } catch (const FormatError&) {
      return true;
    }
    return false;
  };
  ASSERT_FALSE(found());
  std::vector<uint64_t> places = {0, 1, 7, 8, 40, 44, 59, 60, 61, data_begin - 1, data_begin, size - 1};
  Random random(derive_seed(2, 0, "bit flips"));
  for (int i = 0; i < 150; ++i) places.push_back(random.below(data_begin));
  for (int i = 0; i < 150; ++i) places.push_back(data_begin + random.below(size - data_begin));
  for (uint64_t at = 8; at < 600; at += 3) places.push_back(at);
  for (const uint64_t at : places) {
    const auto bit = static_cast<int>(random.below(8));
    flip_bit(path, at, bit);
    EXPECT_TRUE(found()) << "byte " << at << " bit " << bit;
    flip_bit(path, at, bit);
  }
  EXPECT_FALSE(found());
}

TEST_F(CheckpointTest, TheDamagedTensorIsNamed) {
  const fs::path path = root_ / "c.safetensors";
  save_checkpoint(path, small_meta(1), Numbers(1).tensors);
  const auto file = SafetensorsFile::open(path);
  const auto& entry = file.at("optimizer.exp_avg.norm.weight");
  flip_bit(path, file.data_begin() + entry.begin, 3);
  const Checkpoint c = Checkpoint::open(path);
  EXPECT_EQ(error_line([&] { c.verify(); }),
            path.string() + " is damaged: tensor 'optimizer.exp_avg.norm.weight' does not match its checksum");
}

TEST_F(CheckpointTest, OtherFilesAreNotCheckpoints) {
  const fs::path path = root_ / "c.safetensors";
  const std::vector<float> one = {1};
  const std::vector<TensorBytes> tensors = {{{"a", DType::F32, {1}}, std::as_bytes(std::span(one))}};
  write_safetensors(path, tensors, {{"format", "pt"}});
  EXPECT_THROW(Checkpoint::open(path), FormatError);
  // Whole, but of another version: not damaged, so nobody may set it aside.
  write_checked(path, tensors, {{"format", "mythos.checkpoint.2"}});
  try {
    Checkpoint::open(path);
    FAIL();
  } catch (const FormatError&) {
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("mythos.checkpoint.2"), std::string::npos);
  }
  // Says it is a checkpoint of a model it does not hold, or of one with far more.
  CheckpointMeta meta = small_meta(1);
  write_checked(path, tensors, to_metadata(meta));
  EXPECT_THROW(Checkpoint::open(path), FormatError);
  meta.model.n_experts = 16'384;
  write_checked(path, tensors, to_metadata(meta));
  EXPECT_THROW(Checkpoint::open(path), FormatError);
  // Every key is needed, and numbers are whole.
  for (size_t drop = 0; drop < to_metadata(meta).size(); ++drop) {
    auto metadata = to_metadata(small_meta(1));
    metadata.erase(metadata.begin() + static_cast<int64_t>(drop));
    write_checked(path, tensors, metadata);
    EXPECT_NE(error_line([&] { Checkpoint::open(path); }).find("in its metadata"), std::string::npos) << drop;
  }
  for (const char* step : {"", "-1", "1.5", "1e3", "99999999999999999999", " 1"}) {
    auto metadata = to_metadata(small_meta(1));
    metadata[1].second = step;
    write_checked(path, tensors, metadata);
    EXPECT_NE(error_line([&] { Checkpoint::open(path); }).find("as its 'step'"), std::string::npos) << step;
  }
  for (const std::string& data :
       {std::string("{"), std::string(1000, '['), std::string("1e999"), std::string("\0", 1)}) {
    auto metadata = to_metadata(small_meta(1));
    for (auto& [key, value] : metadata) {
      if (key == "data") value = data;
    }
    write_checked(path, tensors, metadata);
    EXPECT_NE(error_line([&] { Checkpoint::open(path); }).find("'data'"), std::string::npos) << data;
  }
}

TEST_F(CheckpointTest, ExportHoldsTheWeightsUnderTheirNames) {
  const Numbers numbers(1);
  save_checkpoint(root_ / "c", small_meta(600), numbers.tensors);
  write_weights_only(Checkpoint::open(root_ / "c"), root_ / "w");
  const Checkpoint w = Checkpoint::open(root_ / "w");
  w.verify();
  EXPECT_FALSE(w.has_optimizer);
  EXPECT_EQ(w.meta.step, 600);
  EXPECT_EQ(w.meta.model, small_model());
  EXPECT_EQ(static_cast<int64_t>(fs::file_size(root_ / "w")), checked_file_bytes(weight_tensors(small_model())));
  for (const TensorBytes& t : numbers.tensors) {
    if (!t.name.starts_with(model_prefix)) continue;
    const auto data = w.weights(t.name.substr(model_prefix.size()));
    EXPECT_TRUE(std::equal(data.begin(), data.end(), t.data.begin(), t.data.end())) << t.name;
  }
  // Exporting again from it works; exporting damage does not.
  write_weights_only(w, root_ / "w2");
  EXPECT_EQ(read_file(root_ / "w2"), read_file(root_ / "w"));
  flip_bit(root_ / "c", fs::file_size(root_ / "c") - 1, 0);
  EXPECT_THROW(write_weights_only(Checkpoint::open(root_ / "c"), root_ / "w3"), FormatError);
  EXPECT_FALSE(fs::exists(root_ / "w3"));
}

// A tied model has one matrix; a file with both names is fine only if they are equal.
TEST_F(CheckpointTest, C10TiedHead) {
  const fs::path path = root_ / "t.safetensors";
  const std::vector<float> a = {1, 2, 3, 4};
  std::vector<float> b = a;
  const auto write = [&](std::vector<int64_t> head_shape) {
    write_safetensors(
        path,
        std::vector<TensorBytes>{{{"m.embed.weight", DType::F32, {2, 2}}, std::as_bytes(std::span(a))},
                                 {{"m.head.weight", DType::F32, std::move(head_shape)}, std::as_bytes(std::span(b))}},
        {});
    return SafetensorsFile::open(path);
  };
  EXPECT_TRUE(has_tied_head(write({2, 2}), "m."));
  EXPECT_FALSE(has_tied_head(write({2, 2})));
  EXPECT_THROW((void)has_tied_head(write({4, 1}), "m."), FormatError);
  b[3] = 5;
  EXPECT_THROW((void)has_tied_head(write({2, 2}), "m."), FormatError);
  save_checkpoint(path, small_meta(1), Numbers(1).tensors);
  EXPECT_FALSE(has_tied_head(SafetensorsFile::open(path), model_prefix));
}

TEST_F(CheckpointTest, Describe) {
  save_checkpoint(root_ / "c", small_meta(600), Numbers(1).tensors);
  Json d = describe(root_ / "c");
  EXPECT_EQ(d["kind"], "checkpoint");
  EXPECT_EQ(d["step"], 600);
  EXPECT_EQ(d["parameters"], parameter_count(small_model()));
  EXPECT_EQ(d["bytes"], checkpoint_bytes(small_model()));
  EXPECT_EQ(d["tensors"], checkpoint_tensors(small_model()).size());
  EXPECT_EQ(d["dtypes"]["F32"], d["tensors"]);
  EXPECT_EQ(d["data"]["epoch"], 1);
  EXPECT_EQ(d["tensor_table"][0]["name"], "model.embed.weight");
  write_weights_only(Checkpoint::open(root_ / "c"), root_ / "w");
  EXPECT_EQ(describe(root_ / "w")["kind"], "weights");
  EXPECT_EQ(describe(root_ / "w")["parameters"], parameter_count(small_model()));

  const std::vector<float> one = {1, 2};
  write_safetensors(root_ / "f", std::vector<TensorBytes>{{{"a", DType::F32, {2}}, std::as_bytes(std::span(one))}},
                    {{"k", "v"}});
  d = describe(root_ / "f");
  EXPECT_EQ(d["kind"], "safetensors");
  EXPECT_EQ(d["parameters"], 2);
  EXPECT_EQ(d["metadata"]["k"], "v");
  EXPECT_THROW(describe(root_ / "none"), Error);
}

}  // namespace
}  // namespace mythos
