// Attention of all shapes against its composite form and numeric derivatives, and its tiles cut at every edge.
#include "../support/tensors.h"

#include "kernels/attention.h"
#include "kernels/cpu/attention.h"

#include <ATen/Parallel.h>

namespace mythos {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace)

constexpr at::ScalarType types[] = {at::kDouble, at::kFloat};

RotaryTable::Slice positions(int64_t width, int64_t begin, int64_t count) {
  return RotaryTable(width, 10000.0, at::kCPU).slice(begin, count);
}

using MlaOp = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const RotaryTable::Slice&,
                         const MlaHeads&);
Function mla(MlaOp* op, const MlaHeads& sizes, int64_t t, int64_t s) {
  const auto rows = positions(sizes.rope, s - t, t);
  return [op, sizes, rows](const Tensors& in) { return Tensors{op(in[0], in[1], in[2], rows, sizes)}; };
}
std::array<std::vector<int64_t>, 3> mla_shapes(const MlaHeads& sizes, int64_t batch, int64_t t, int64_t s) {
  return {{{batch, t, sizes.heads * (sizes.nope + sizes.rope)},
           {batch, s, sizes.heads * (sizes.nope + sizes.value)},
           {batch, s, sizes.rope}}};
}
Tensors mla_inputs(Draw& draw, const MlaHeads& sizes, int64_t batch, int64_t t, int64_t s, double scale = 1) {
  const auto shapes = mla_shapes(sizes, batch, t, s);
  return {draw.normal(shapes[0], scale), draw.normal(shapes[1], scale), draw.normal(shapes[2], scale)};
}

const Function grouped = [](const Tensors& in) { return Tensors{causal_attention(in[0], in[1], in[2])}; };
const Function grouped_reference = [](const Tensors& in) {
  return Tensors{causal_attention_reference(in[0], in[1], in[2])};
};

// ---- against the composite form -------------------------------------------------------------------------------------

TEST(MlaAttention, EqualsCompositeForm) {
  // Values narrower than, as wide as and wider than keys; one query over a cache; more rows than one tile.
  const MlaHeads cases[] = {{1, 1, 2, 1}, {3, 5, 4, 5}, {2, 15, 2, 17}, {3, 4, 2, 9}, {5, 16, 16, 30}};
  for (const auto type : types) {
    Draw draw(type);
    for (const auto& sizes : cases) {
      for (const auto& [t, s] :
           {std::pair<int64_t, int64_t>{1, 1}, {1, 7}, {1, 600}, {3, 5}, {33, 33}, {64, 65}, {67, 131}}) {
        const auto fused = mla(&mla_attention, sizes, t, s);
        const auto composite = mla(&mla_attention_reference, sizes, t, s);
        const std::string what =
            fmt::format("H {} nope {} rope {} v {} T {} S {}", sizes.heads, sizes.nope, sizes.rope, sizes.value, t, s);
        expect_twins(what, fused, composite, mla_inputs(draw, sizes, 2, t, s));
        const auto shapes = mla_shapes(sizes, 2, t, s);
        expect_twins(what + " strided", fused, composite,
                     {draw.transposed(shapes[0]), draw.transposed(shapes[1]), draw.transposed(shapes[2])});
      }
    }
  }
}

TEST(MlaAttention, LongerThanATile) {
  const MlaHeads sizes{2, 8, 4, 6};
  for (const auto type : types) {
    Draw draw(type);
    for (const auto& [t, s] : {std::pair<int64_t, int64_t>{577, 577}, {300, 811}, {2, 1100}, {513, 514}}) {
      expect_twins(fmt::format("T {} S {}", t, s), mla(&mla_attention, sizes, t, s),
                   mla(&mla_attention_reference, sizes, t, s), mla_inputs(draw, sizes, 1, t, s));
    }
  }
}

TEST(CausalAttention, EqualsCompositeForm) {
  for (const auto type : types) {
    Draw draw(type);
    for (const auto& [t, s] :
         {std::pair<int64_t, int64_t>{1, 1}, {1, 8}, {1, 530}, {3, 8}, {17, 17}, {33, 40}, {64, 64}, {131, 200}}) {
      for (const auto& [heads, kv_heads] : {std::pair<int64_t, int64_t>{1, 1}, {3, 3}, {6, 2}, {4, 1}}) {
        for (const auto& [d, dv] : {std::pair<int64_t, int64_t>{16, 16}, {6, 6}, {10, 7}, {7, 10}}) {
          expect_twins(
              fmt::format("T {} S {} H {}/{} d {} dv {}", t, s, heads, kv_heads, d, dv), grouped, grouped_reference,
              {draw.normal({2, t, heads, d}), draw.normal({2, s, kv_heads, d}), draw.normal({2, s, kv_heads, dv})});
        }
      }
    }
  }
}

TEST(CausalAttention, LongerThanATile) {
  for (const auto type : types) {
    Draw draw(type);
    for (const auto& [t, s] : {std::pair<int64_t, int64_t>{577, 577}, {300, 811}, {2, 1100}}) {
      expect_twins(fmt::format("T {} S {}", t, s), grouped, grouped_reference,
                   {draw.normal({1, t, 4, 8}), draw.normal({1, s, 2, 8}), draw.normal({1, s, 2, 6})});
    }
  }
}

// Parts of one projection, memory of any order, and rows that repeat.
TEST(CausalAttention, TakesAnyStrides) {
  for (const auto type : types) {
    Draw draw(type);
    const Function fused = [](const Tensors& in) {
      const auto parts = in[0].view({2, 37, 8, 6}).split_with_sizes({4, 2, 2}, 2);
      return Tensors{causal_attention(parts[0], parts[1], parts[2])};
    };
    const Function composite = [](const Tensors& in) {
      const auto parts = in[0].view({2, 37, 8, 6}).split_with_sizes({4, 2, 2}, 2);
      return Tensors{causal_attention_reference(parts[0], parts[1], parts[2])};
    };
    expect_twins("parts", fused, composite, {draw.normal({2, 37, 48})});
    expect_twins("transposed", grouped, grouped_reference,
                 {draw.transposed({2, 9, 4, 6}), draw.transposed({2, 9, 2, 6}), draw.transposed({2, 9, 2, 5})});
    const at::Tensor one = draw.normal({1, 20, 1, 6});
    const at::Tensor repeated = one.expand({3, 20, 2, 6});
    const at::Tensor q = draw.normal({3, 20, 4, 6});
    EXPECT_CLOSE(causal_attention(q, repeated, repeated), causal_attention_reference(q, repeated, repeated),
                 rounding(type));
  }
}

// With its two projections inside: the same as the three ops apart, by value, by derivative, and with gradient buffers.
TEST(MlaProjectedAttention, EqualsItsPartsApart) {
  const MlaHeads sizes{3, 5, 4, 6};
  const int64_t q_rank = 7, kv_rank = 9;
  for (const auto type : types) {
    Draw draw(type);
    for (const auto& [t, s] : {std::pair<int64_t, int64_t>{1, 1}, {1, 6}, {5, 9}, {17, 17}, {140, 140}}) {
      const auto rows = RotaryTable(sizes.rope, 10000.0, at::kCPU).slice(s - t, t);
      const Tensors inputs{draw.normal({2, t, q_rank}), draw.normal({sizes.heads * 9, q_rank}, 0.4),
                           draw.normal({2, s, kv_rank}), draw.normal({sizes.heads * 11, kv_rank}, 0.4),
                           draw.normal({2, s, sizes.rope})};
      const Function fused = [&](const Tensors& in) {
        return Tensors{mla_projected_attention(in[0], {in[1], {}}, in[2], {in[3], {}}, in[4], rows, sizes)};
      };
      const Function parts = [&](const Tensors& in) {
        return Tensors{mla_attention_reference(at::linear(in[0], in[1]), at::linear(in[2], in[3]), in[4], rows, sizes)};
      };
      const std::string what = fmt::format("T {} S {}", t, s);
      expect_twins(what, fused, parts, inputs, 3);
      if (type == at::kDouble && t < 10) expect_derivatives(what, fused, inputs);

      Tensors leaves;
      for (const auto& x : inputs) leaves.push_back(leaf(x));
      const Weight q_up{leaves[1], at::ones_like(inputs[1])}, kv_up{leaves[3], at::ones_like(inputs[3])};
      const at::Tensor out = mla_projected_attention(leaves[0], q_up, leaves[2], kv_up, leaves[4], rows, sizes);
      const at::Tensor cotangent = draw.normal(out.sizes());
      torch::autograd::backward({out}, {cotangent});
      Tensors plain;
      for (const auto& x : inputs) plain.push_back(leaf(x));
      const Tensors expected = gradients(parts(plain), plain, {cotangent});
      EXPECT_CLOSE(q_up.grad - 1, expected[1], 10 * rounding(type)) << what;
      EXPECT_CLOSE(kv_up.grad - 1, expected[3], 10 * rounding(type)) << what;
      EXPECT_FALSE(leaves[1].grad().defined() || leaves[3].grad().defined()) << what;
      for (const size_t i : {0, 2, 4}) EXPECT_CLOSE(leaves[i].grad(), expected[i], 3 * rounding(type)) << what;
    }
  }
}

// ---- gradients ------------------------------------------------------------------------------------------------------

TEST(Derivatives, Attention) {
  Draw draw(at::kDouble);
  const MlaHeads sizes{2, 3, 4, 5};
  for (const auto& [t, s] : {std::pair<int64_t, int64_t>{4, 4}, {1, 5}, {3, 5}, {70, 70}}) {
    const std::string what = fmt::format("{}/{}", t, s);
    expect_derivatives("mla_attention " + what, mla(&mla_attention, sizes, t, s), mla_inputs(draw, sizes, 2, t, s));
    expect_derivatives("causal_attention " + what, grouped,
                       {draw.normal({2, t, 4, 6}), draw.normal({2, s, 2, 6}), draw.normal({2, s, 2, 6})});
  }
}

// Whichever inputs ask for a gradient get the same as when all do, and the others none.
TEST(Gradients, OfSomeInputsOnly) {
  Draw draw(at::kDouble);
  const MlaHeads sizes{2, 3, 4, 5};
  const std::pair<Function, Tensors> ops[] = {
      {mla(&mla_attention, sizes, 9, 12), mla_inputs(draw, sizes, 2, 9, 12)},
      {grouped, {draw.normal({2, 9, 4, 6}), draw.normal({2, 12, 2, 6}), draw.normal({2, 12, 2, 5})}}};
  for (const auto& [op, inputs] : ops) {
    const Tensors all{leaf(inputs[0]), leaf(inputs[1]), leaf(inputs[2])};
    const at::Tensor whole = op(all)[0];
    const at::Tensor cotangent = draw.normal(whole.sizes());
    const Tensors expected = gradients({whole}, all, {cotangent});
    for (int mask = 0; mask < 8; ++mask) {
      Tensors some;
      for (size_t i = 0; i < 3; ++i) some.push_back((mask >> i & 1) != 0 ? leaf(inputs[i]) : inputs[i]);
      const at::Tensor out = op(some)[0];
      EXPECT_TRUE(out.equal(whole));
      ASSERT_EQ(out.requires_grad(), mask != 0);
      if (mask == 0) continue;
      torch::autograd::backward({out}, {cotangent});
      for (size_t i = 0; i < 3; ++i) {
        ASSERT_EQ(some[i].grad().defined(), (mask >> i & 1) != 0) << mask << " " << i;
        if (some[i].grad().defined()) {
          EXPECT_TRUE(some[i].grad().equal(expected[i])) << mask << " " << i;
        }
      }
    }
    const at::NoGradGuard no_grad;
    EXPECT_FALSE(op(all)[0].requires_grad());
  }
}

TEST(Gradients, OfAnOutputUsedInParts) {  // the gradient comes expanded, or as zeros in part
  Draw draw(at::kFloat);
  const MlaHeads sizes{2, 3, 4, 5};
  for (const auto& use : {Function{[](const Tensors& o) { return Tensors{o[0].sum()}; }},
                          Function{[](const Tensors& o) { return Tensors{o[0].select(1, 3).transpose(0, 1)}; }}}) {
    const auto then = [&use](const Function& op) { return [&use, op](const Tensors& in) { return use(op(in)); }; };
    expect_twins("mla_attention", then(mla(&mla_attention, sizes, 9, 9)),
                 then(mla(&mla_attention_reference, sizes, 9, 9)), mla_inputs(draw, sizes, 2, 9, 9));
  }
}

// ---- numbers --------------------------------------------------------------------------------------------------------

TEST(Attention, VeryLargeScoresStayFinite) {
  const MlaHeads sizes{2, 8, 4, 6};
  for (const auto type : types) {
    Draw draw(type);
    for (const double scale : {30.0, 1e4}) {  // scores to about 1e4 and 1e9
      Tensors inputs = mla_inputs(draw, sizes, 1, 150, 150, scale);
      for (auto& t : inputs) t = leaf(t);
      const at::Tensor out = mla(&mla_attention, sizes, 150, 150)(inputs)[0];
      EXPECT_TRUE(out.isfinite().all().item<bool>());
      for (const auto& g : gradients({out}, inputs, {draw.normal(out.sizes())})) {
        EXPECT_TRUE(g.isfinite().all().item<bool>());
      }
      if (type == at::kDouble) {
        EXPECT_CLOSE(out, mla(&mla_attention_reference, sizes, 150, 150)(inputs)[0], 1e-9);
      }
    }
    // Scores that grow from key to key, so that every tile has a new largest one; and ones that fall. In float the log
    // of a row's sum is rounded like a score: scores beyond 100 cost the gradients digits. In double they reach 1,400,
    // and the gradient of q is a sum of such keys whose weights cancel.
    for (const double slope : {1.0, -1.0}) {
      const int64_t n = 700;
      const double step = slope * (type == at::kDouble ? 2.0 : 0.03);
      const at::Tensor key = (at::arange(n, at::kDouble) * step).to(type).view({1, n, 1, 1});
      const at::Tensor q = at::ones({1, n, 1, 1}, type), v = draw.normal({1, n, 1, 3});
      expect_twins(fmt::format("step {}", step), grouped, grouped_reference, {q, key, v}, type == at::kDouble ? 4 : 1);
    }
  }
}

TEST(Attention, NotANumberStaysInItsRows) {
  Draw draw(at::kFloat);
  const at::Tensor q = draw.normal({1, 40, 2, 8}), k = draw.normal({1, 40, 2, 8}), v = draw.normal({1, 40, 2, 8});
  at::Tensor poisoned = k.clone();
  poisoned[0][20][1][3] = std::numeric_limits<float>::quiet_NaN();
  const at::Tensor out = causal_attention(q, poisoned, v), clean = causal_attention(q, k, v);
  EXPECT_TRUE(out.select(2, 0).equal(clean.select(2, 0)));
  EXPECT_TRUE(out.select(2, 1).narrow(1, 0, 20).equal(clean.select(2, 1).narrow(1, 0, 20)));
  EXPECT_TRUE(out.select(2, 1).narrow(1, 20, 20).isnan().all().item<bool>());
}

// The same bits whatever the threads and their interleaving.
TEST(Attention, DoesNotDependOnThreads) {
  Draw draw(at::kFloat);
  const int before = at::get_num_threads();
  const MlaHeads sizes{3, 16, 8, 16};
  const Function op = mla(&mla_attention, sizes, 290, 300);
  const Tensors inputs = mla_inputs(draw, sizes, 1, 290, 300);
  const Tensors group{draw.normal({2, 290, 4, 16}), draw.normal({2, 290, 2, 16}), draw.normal({2, 290, 2, 16})};
  for (const auto& [function, in] : {std::pair{op, inputs}, {grouped, group}}) {
    Tensors first;
    for (const int threads : {1, 2, 3, 5, 5}) {
      at::set_num_threads(threads);
      const Tensors leaves{leaf(in[0]), leaf(in[1]), leaf(in[2])};
      Tensors results = function(leaves);
      const Tensors grads = gradients(results, leaves, {results[0].detach() + 1});
      results.insert(results.end(), grads.begin(), grads.end());
      if (first.empty()) first = results;
      for (size_t i = 0; i < results.size(); ++i) EXPECT_TRUE(results[i].equal(first[i])) << threads << " " << i;
    }
  }
  at::set_num_threads(before);
}

TEST(MlaAttention, RefusesShapesThatDoNotFit) {
  Draw draw(at::kFloat);
  const MlaHeads sizes{2, 3, 4, 5};
  const auto call = [&](int64_t t, int64_t s, const std::function<void(Tensors&)>& change) {
    Tensors in = mla_inputs(draw, sizes, 1, t, s);
    change(in);
    mla_attention(in[0], in[1], in[2], positions(4, 0, t), sizes);
  };
  EXPECT_NO_THROW(call(3, 4, [](Tensors&) {}));
  EXPECT_THROW(call(5, 4, [](Tensors&) {}), c10::Error);
  for (const size_t i : {0, 1, 2}) {
    EXPECT_THROW(call(3, 4, [i](Tensors& in) { in[i] = in[i].narrow(2, 1, in[i].size(2) - 1); }), c10::Error) << i;
    EXPECT_THROW(call(3, 4, [i](Tensors& in) { in[i] = at::cat({in[i], in[i]}, 0); }), c10::Error) << i;
  }
  EXPECT_THROW(call(3, 4, [](Tensors& in) { in[2] = in[2].narrow(1, 0, 3); }), c10::Error);
}

// ---- tiles ----------------------------------------------------------------------------------------------------------

// One head through tiles of given sizes: output, lse and the three gradients.
Tensors through_tiles(const cpu::AttentionTiles& tiles, const Tensors& in, const at::Tensor& dout) {
  const at::Tensor &q = in[0], &k = in[1], &v = in[2];
  const int64_t t = q.size(0), s = k.size(0), width = q.size(1), value = v.size(1);
  const auto matrix = [](const at::Tensor& x) {
    return cpu::Matrix<const double>{x.const_data_ptr<double>(), x.stride(0), x.size(1)};
  };
  const auto out_matrix = [](const at::Tensor& x, int64_t row) {
    return cpu::Matrix<double>{x.mutable_data_ptr<double>() + row * x.stride(0), x.stride(0), x.size(1)};
  };
  const auto nan = [](at::IntArrayRef shape) {
    return at::full(shape, std::numeric_limits<double>::quiet_NaN(), at::kDouble);
  };
  const at::Tensor out = nan({t, value}), lse = nan({t}), dq = at::zeros_like(q), dk = nan({s, width}),
                   dv = nan({s, value});
  at::Tensor scratch = nan({cpu::attend_scratch(tiles, value) + cpu::attend_backward_scratch(tiles)});
  for (int64_t row = 0; row < t; row += tiles.queries) {
    const int64_t rows = std::min(tiles.queries, t - row);
    const at::Tensor block = q.narrow(0, row, rows);
    cpu::attend<double>(tiles, matrix(block), rows, {matrix(k), {}, matrix(v)}, s - t + row, true,
                        scratch.mutable_data_ptr<double>(), out_matrix(out, row), lse.mutable_data_ptr<double>() + row);
  }
  const at::Tensor delta = (out * dout).sum(1);
  const cpu::HeadGradient<double> head{matrix(q), matrix(dout), lse.const_data_ptr<double>(),
                                       delta.const_data_ptr<double>(), out_matrix(dq, 0)};
  for (int64_t first = 0; first < s; first += tiles.keys) {
    const int64_t count = std::min(tiles.keys, s - first);
    cpu::attend_backward<double>(tiles, head, t, s - t, matrix(k.narrow(0, first, count)),
                                 matrix(v.narrow(0, first, count)), first, count, scratch.mutable_data_ptr<double>(),
                                 out_matrix(dk, first), out_matrix(dv, first));
  }
  return {out, lse, dq, dk, dv};
}

TEST(AttentionTiles, AreCutAtEveryEdge) {
  Draw draw(at::kDouble);
  for (const int64_t t : {1, 2, 3, 5, 8, 9, 13}) {
    for (const int64_t more : {0, 1, 2, 7}) {
      const int64_t s = t + more;
      const Tensors in{leaf(draw.normal({t, 4})), leaf(draw.normal({s, 4})), leaf(draw.normal({s, 3}))};
      const at::Tensor dout = draw.normal({t, 3});
      const at::Tensor scores = at::mm(in[0], in[1].t())
                                    .masked_fill(at::ones({t, s}, at::kBool).tril(more).logical_not(),
                                                 -std::numeric_limits<double>::infinity());
      const at::Tensor out = at::mm(scores.softmax(-1), in[2]);
      Tensors expected = gradients({out}, in, {dout});
      expected.insert(expected.begin(), {out, scores.logsumexp(-1)});
      for (const cpu::AttentionTiles tiles :
           {cpu::AttentionTiles{1, 1, 1}, {2, 3, 1}, {3, 3, 2}, {4, 4, 2}, {4, 8, 4}, {5, 6, 5}, {16, 32, 4}}) {
        const Tensors results = through_tiles(tiles, {in[0].detach(), in[1].detach(), in[2].detach()}, dout);
        for (size_t i = 0; i < results.size(); ++i) {
          EXPECT_CLOSE(results[i], expected[i], 1e-13)
              << fmt::format("T {} S {} tiles {} x {} / {}: {}", t, s, tiles.queries, tiles.keys, tiles.strip, i);
        }
      }
    }
  }
}

}  // namespace
}  // namespace mythos
