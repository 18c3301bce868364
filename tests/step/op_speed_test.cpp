// Measuring the ops: every one in tiny shapes, both forms computing the same.
#include "step/op_speed.h"

#include "../support/small_model.h"
#include "../support/tensors.h"

#include "base/error.h"
#include "step/op_cases.h"

namespace mythos {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace)

OpSpeedOptions small_options(AttentionType attention = AttentionType::mla) {
  OpSpeedOptions o;
  o.model = small_config(attention);
  o.seq_len = 16;
  o.micro_batch = 2;
  o.head_tokens = 8;
  o.seconds = 0;
  return o;
}

TEST(OpSpeed, EveryOpHasFiniteFigures) {
  for (const auto attention : {AttentionType::mla, AttentionType::gqa}) {
    std::vector<std::string> said;
    const auto speeds = measure_ops(small_options(attention), [&](const std::string& name) { said.push_back(name); });
    EXPECT_EQ(said, op_names());
    ASSERT_EQ(speeds.size(), op_names().size());
    for (size_t i = 0; i < speeds.size(); ++i) {
      const OpSpeed& s = speeds[i];
      EXPECT_EQ(s.name, op_names()[i]);
      EXPECT_FALSE(s.shape.empty()) << s.name;
      for (const double figure : {s.forward.ours, s.forward.composite, s.forward.ratio(), s.both.ours, s.both.composite,
                                  s.both.ratio(), s.forward_rate(), s.both_rate(), s.limit}) {
        EXPECT_TRUE(std::isfinite(figure) && figure > 0) << s.name << ": " << figure;
      }
      EXPECT_GE(s.both_work, s.forward_work) << s.name;
    }
  }
}

// What is compared computes the same: outputs, gradients of the inputs and of the weights.
TEST(OpSpeed, BothFormsComputeTheSame) {
  for (const auto& name : op_names()) {
    Tensors outputs[2], grads[2];
    for (const int which : {0, 1}) {
      const OpCase op = op_case(name, small_options());  // the same seed, the same inputs
      outputs[which] = (which == 0 ? op.ours : op.composite)();
      Tensors ones;
      for (const auto& out : outputs[which]) ones.push_back(at::ones_like(out));
      if (!op.differentiable) continue;
      torch::autograd::backward(outputs[which], ones);
      for (const auto& input : op.inputs) grads[which].push_back(input.grad());
    }
    for (size_t i = 0; i < outputs[0].size(); ++i) EXPECT_CLOSE(outputs[0][i], outputs[1][i], 1e-4) << name;
    for (size_t i = 0; i < grads[0].size(); ++i) EXPECT_CLOSE(grads[0][i], grads[1][i], 1e-4) << name << " " << i;
  }
}

TEST(OpSpeed, FilterChoosesByPartOfTheName) {
  OpSpeedOptions o = small_options();
  o.filter = "norm";
  std::vector<std::string> said;
  measure_ops(o, [&](const std::string& name) { said.push_back(name); });
  EXPECT_EQ(said, (std::vector<std::string>{"rms_norm", "loop_norm"}));
}

TEST(OpSpeed, RefusesUnknownOpsAndTooManyPositions) {
  const auto say = [](const std::string&) {};
  OpSpeedOptions o = small_options();
  o.filter = "injektion";
  try {
    measure_ops(o, say);
    ADD_FAILURE() << "not refused";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("injektion"), std::string::npos);
    EXPECT_NE(error.hint().find("'injection'"), std::string::npos) << error.hint();
  }
  o = small_options();
  o.seq_len = 25;
  EXPECT_THROW(measure_ops(o, say), Error);
}

}  // namespace
}  // namespace mythos
