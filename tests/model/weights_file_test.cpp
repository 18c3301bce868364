#include "model/weights_file.h"

#include "../support/small_model.h"
#include "base/safetensors.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>

namespace mythos {
namespace {

namespace fs = std::filesystem;

class WeightsFileTest : public ::testing::Test {
 protected:
  WeightsFileTest() : model_(test::small_model(test::small_config(), at::kFloat, at::kFloat)) {
    std::string name = (fs::temp_directory_path() / "mythos_weights_XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder " + name);
    folder_ = name;
    path_ = folder_ / "weights.safetensors";
  }
  ~WeightsFileTest() override {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }

  void write(bool buffers, const std::function<void(std::vector<TensorBytes>&)>& change = {}) {
    std::vector<TensorBytes> tensors;
    auto all = model_->parameters().named_values();
    if (buffers) all.push_back(model_->named_buffers()[0]);
    for (const auto& [name, t] : all) {
      const auto* data = static_cast<const std::byte*>(t.const_data_ptr());
      tensors.push_back({{name, DType::F32, t.sizes().vec()}, {data, t.nbytes()}});
    }
    if (change) change(tensors);
    write_safetensors(path_, tensors, {});
  }
  [[nodiscard]] std::unique_ptr<Model> empty(at::ScalarType dtype = at::kFloat) const {
    return std::make_unique<Model>(model_->config(), at::kCPU, dtype, dtype, false);
  }
  std::string error() {
    const auto model = empty();
    try {
      load_weights_file(path_, *model);
    } catch (const FormatError& e) {
      EXPECT_NE(e.line().find(path_.string()), std::string::npos) << e.line();
      EXPECT_EQ(model->parameters().values(0).abs().max().item<double>(), 0) << "a wrong file changes nothing";
      return e.line();
    }
    return "no error";
  }

  fs::path folder_, path_;
  std::unique_ptr<Model> model_;
};

TEST_F(WeightsFileTest, FillsParametersAndTheBuffersThatAreThere) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    for (const bool buffers : {true, false}) {
      write(buffers);
      const auto other = empty(dtype);
      load_weights_file(path_, *other);
      const auto a = model_->parameters().named_values();
      const auto b = other->parameters().named_values();
      for (size_t i = 0; i < a.size(); ++i) {
        EXPECT_TRUE(at::equal(a[i].tensor.to(dtype), b[i].tensor)) << a[i].name;
      }
      const at::Tensor bias = other->named_buffers()[0].tensor;
      EXPECT_EQ(at::equal(bias, model_->named_buffers()[0].tensor.to(bias.scalar_type())), buffers);
    }
  }
}

TEST_F(WeightsFileTest, SaysWhatIsWrongWithAFile) {
  write(false, [](auto& tensors) { tensors.erase(tensors.begin() + 3); });
  EXPECT_NE(error().find(model_->parameters().named_values()[3].name), std::string::npos) << error();
  write(false, [](auto& tensors) { tensors[0].shape = {tensors[0].numel()}; });
  EXPECT_NE(error().find("is F32 [1952], the model wants F32 [61, 32]"), std::string::npos) << error();
  write(false, [](auto& tensors) { tensors[2].dtype = DType::I32; });
  EXPECT_NE(error().find("is I32"), std::string::npos) << error();
  write(true, [](auto& tensors) { tensors.back().name = "head.weight"; });
  EXPECT_NE(error().find("the model has no 'head.weight'"), std::string::npos) << error();
}

}  // namespace
}  // namespace mythos
