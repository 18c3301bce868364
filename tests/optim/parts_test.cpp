// A store cut into parts: together they do what the whole does, to the bit, however many there are.
#include "../support/small_model.h"
#include "../support/tensors.h"

#include "optim/adamw.h"

namespace mythos {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace)

Tensors gradients_of(const ParameterStore& store, int step, at::ScalarType type) {
  Draw draw(type, static_cast<uint64_t>(90 + step));
  Tensors all;
  for (const auto& unit : store.layout().units) {
    at::Tensor g = at::zeros({unit.size}, type);
    for (const auto& leaf : unit.leaves) g.narrow(0, leaf.offset, leaf.numel()).copy_(draw.normal({leaf.numel()}));
    all.push_back(g);
  }
  return all;
}

// What part of a unit of `size` elements is the store's own.
at::Tensor own_part(const ParameterStore& store, size_t u, const at::Tensor& whole) {
  at::Tensor padded = at::zeros({store.partition().parts * store.shard(u)}, whole.options());
  padded.narrow(0, 0, whole.numel()).copy_(whole);
  return padded.narrow(0, store.own_begin(u), store.shard(u)).clone();
}

TEST(Parts, UpdateLikeTheWhole) {
  const ModelConfig config = small_config();
  const auto source = small_model(config, at::kFloat);
  const auto values = source->parameters().named_values();
  // Parameters that are behind cut a unit's buffer once more.
  std::vector<int64_t> lags(values.size(), 0);
  lags[7] = 1;
  for (const bool decay_vectors : {true, false}) {
    Model whole(config, at::kCPU, at::kFloat, at::kFloat, true);
    for (size_t i = 0; i < values.size(); ++i) whole.parameters().set_value(i, values[i].tensor);
    AdamW reference(whole.parameters(), {.decay_vectors = decay_vectors});
    reference.set_lags(lags);
    reference.set_steps(1);
    for (int step = 0; step < 3; ++step) {
      const Tensors g = gradients_of(whole.parameters(), step, at::kFloat);
      for (size_t u = 0; u < g.size(); ++u) whole.parameters().gradients(u).copy_(g[u]);
      reference.step(0.01, 1.5);
    }
    // 500 parts: some hold nothing of the smaller units.
    for (const int64_t parts : {2, 3, 7, 500}) {
      bool empty = false;
      for (int64_t index = 0; index<parts; index += parts> 10 ? 83 : 1) {
        for (const bool transient : {false, true}) {
          Model part(config, at::kCPU, at::kFloat, at::kFloat, true, {parts, index, transient});
          ParameterStore& store = part.parameters();
          for (size_t i = 0; i < values.size(); ++i) store.set_value(i, values[i].tensor);
          AdamW optimizer(store, {.decay_vectors = decay_vectors});
          optimizer.set_lags(lags);
          optimizer.set_steps(1);
          for (int step = 0; step < 3; ++step) {
            const Tensors g = gradients_of(store, step, at::kFloat);
            for (size_t u = 0; u < g.size(); ++u) store.gradients(u).copy_(own_part(store, u, g[u]));
            optimizer.step(0.01, 1.5);
          }
          for (size_t u = 0; u < store.units(); ++u) {
            EXPECT_TRUE(store.values(u).equal(own_part(store, u, whole.parameters().values(u))))
                << "unit " << u << ", part " << index << " of " << parts;
            EXPECT_TRUE(optimizer.first_moments()[u].equal(own_part(store, u, reference.first_moments()[u])));
            EXPECT_TRUE(optimizer.second_moments()[u].equal(own_part(store, u, reference.second_moments()[u])));
            empty = empty || store.own_begin(u) >= store.layout().units[u].size;
          }
        }
      }
      EXPECT_EQ(empty, parts == 500);
    }
  }
}

TEST(Parts, AreThereOnlyWhileTheyAreHeld) {
  Model model(small_config(), at::kCPU, at::kFloat, at::kFloat, true, {3, 1, true});
  ParameterStore& store = model.parameters();
  for (size_t u = 0; u < store.units(); ++u) {
    EXPECT_EQ(store.whole_values(u).storage().nbytes(), 0U);
    EXPECT_EQ(store.whole_gradients(u).storage().nbytes(), 0U);
  }
  const at::Tensor leaf = store.leaf("prelude.0.attn.wo.weight").value;
  store.values(1).fill_(5);
  store.hold_values(1);
  store.whole_values(1).zero_();
  store.refresh_compute();
  EXPECT_EQ(store.whole_values(1)[store.own_begin(1)].item<double>(), 5);
  EXPECT_EQ(store.whole_values(1)[store.own_begin(1) - 1].item<double>(), 0);
  // The layers' views see it.
  store.whole_values(1).fill_(7);
  EXPECT_TRUE(leaf.eq(7).all().item<bool>());
  store.hold_gradients(1);
  EXPECT_EQ(store.whole_gradients(1).abs().max().item<double>(), 0);
  store.whole_gradients(1).fill_(1);
  store.hold_gradients(1);
  EXPECT_EQ(store.leaf("prelude.0.attn.wo.weight").grad.min().item<double>(), 1) << "held already: stays as it is";
  store.zero_gradients();
  EXPECT_EQ(store.whole_gradients(1).storage().nbytes(), 0U);
  store.release_values(1);
  EXPECT_EQ(leaf.storage().nbytes(), 0U);
  EXPECT_EQ(store.values(1)[0].item<double>(), 5);
}

// A run of any number of ranks begins with the same weights.
TEST(Parts, BeginLikeTheWhole) {
  const ModelConfig config = small_config();
  Model whole(config, at::kCPU, at::kFloat, at::kFloat, false);
  initialize(whole.parameters(), config, 3);
  for (const bool transient : {false, true}) {
    Model part(config, at::kCPU, at::kBFloat16, at::kFloat, true, {3, 2, transient});
    initialize(part.parameters(), config, 3);
    for (size_t u = 0; u < whole.parameters().units(); ++u) {
      const at::Tensor expected = whole.parameters().values(u);
      EXPECT_TRUE(part.parameters().values(u).equal(own_part(part.parameters(), u, expected)));
      if (transient) continue;
      const at::Tensor all = part.parameters().whole_values(u).narrow(0, 0, expected.numel());
      EXPECT_TRUE(all.equal(expected.to(at::kBFloat16)));
    }
  }
}

}  // namespace
}  // namespace mythos
