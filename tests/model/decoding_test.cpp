// Decoding: narrow weights, texts of different lengths together, loops that end when a token halts.
#include "../support/small_model.h"
#include "../support/tensors.h"
#include "base/error.h"

#include <numeric>

namespace mythos {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace)

at::Tensor some_ids(int64_t n, uint64_t seed) {
  at::Tensor ids = at::empty({1, n}, at::kLong);
  for (int64_t i = 0; i < n; ++i)
    ids[0][i] = static_cast<int64_t>((static_cast<uint64_t>(i) * 17 + seed * 29 + 3) % 61);
  return ids;
}

class Decoding : public ::testing::TestWithParam<AttentionType> {
 protected:
  at::NoGradGuard no_grad_;
};

TEST_P(Decoding, WeightsInBf16AreThoseRoundedAndComputedInFloat) {
  const ModelConfig config = small_config(GetParam());
  const auto wide = small_model(config, at::kFloat);
  const auto narrow = inference_model(config, at::kCPU, at::kBFloat16);
  EXPECT_EQ(narrow->parameters().master_dtype(), at::kBFloat16);
  EXPECT_EQ(narrow->parameters().compute_dtype(), at::kFloat);
  for (size_t u = 0; u < wide->parameters().units(); ++u) {
    narrow->parameters().values(u).copy_(wide->parameters().values(u));
    wide->parameters().values(u).copy_(narrow->parameters().values(u));  // rounded
  }
  narrow->named_buffers()[0].tensor.copy_(wide->named_buffers()[0].tensor);
  narrow->parameters().refresh_compute();
  wide->parameters().refresh_compute();
  const at::Tensor ids = some_ids(20, 1);
  const at::Tensor expected = wide->logits(wide->hidden(ids));
  EXPECT_EQ(narrow->hidden(ids).scalar_type(), at::kFloat);
  EXPECT_CLOSE(narrow->logits(narrow->hidden(ids)), expected, 2e-4);
  KvCache cache;
  for (int64_t i = 0; i < 20; ++i) {
    const at::Tensor h = narrow->hidden(ids.narrow(1, i, 1), {.cache = &cache});
    EXPECT_CLOSE(narrow->logits(h), expected.narrow(1, i, 1), 5e-4) << i;
  }
}

TEST_P(Decoding, TextsOfDifferentLengthsTogetherAreWhatTheyAreAlone) {
  const auto model = small_model(small_config(GetParam()), at::kFloat);
  const int64_t lengths[] = {1, 9, 4};
  std::vector<KvCache> together(3), alone(3);
  for (size_t b = 0; b < 3; ++b) {
    const at::Tensor ids = some_ids(lengths[b], b);
    (void)model->hidden(ids, {.cache = &together[b]});
    (void)model->hidden(ids, {.cache = &alone[b]});
  }
  for (int step = 0; step < 6; ++step) {
    std::vector<at::Tensor> next;
    for (size_t b = 0; b < 3; ++b) next.push_back(some_ids(1, 7 * b + static_cast<uint64_t>(step)));
    const at::Tensor h = model->logits(model->hidden(at::cat(next), {.caches = together}));
    for (size_t b = 0; b < 3; ++b) {
      const at::Tensor one = model->logits(model->hidden(next[b], {.cache = &alone[b]}));
      EXPECT_TRUE(h[static_cast<int64_t>(b)].equal(one[0])) << "text " << b << " step " << step;
      EXPECT_EQ(together[b].length(), lengths[b] + step + 1);
    }
  }
}

// Long pieces go through projected keys and values, short ones through the latent: the same to rounding.
TEST_P(Decoding, PromptsInPiecesGiveWhatWholeOnesGive) {
  const auto model = small_model(small_config(GetParam()), at::kDouble);
  const at::Tensor ids = some_ids(24, 2);
  const at::Tensor whole = model->hidden(ids);
  for (const int64_t piece : {1, 2, 5, 23}) {
    KvCache cache;
    std::vector<at::Tensor> parts;
    for (int64_t at = 0; at < 24; at += piece)
      parts.push_back(model->hidden(ids.narrow(1, at, std::min<int64_t>(piece, 24 - at)), {.cache = &cache}));
    EXPECT_CLOSE(at::cat(parts, 1), whole, 1e-11) << piece;
  }
}

TEST_P(Decoding, ACacheIsOfOneNumberOfLoops) {
  const auto model = small_model(small_config(GetParam()), at::kFloat);
  KvCache cache;
  (void)model->hidden(some_ids(3, 1), {.n_loops = 2, .cache = &cache});
  try {
    (void)model->hidden(some_ids(1, 1), {.n_loops = 3, .cache = &cache});
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.line().find("3 loops asked, the 3 positions before were made with 2"), 0U) << e.line();
  }
}

TEST_P(Decoding, ATokenThatNeverHaltsRunsAllLoopsAndIsTheSame) {
  const auto model = small_model(small_config(GetParam()), at::kFloat);
  value(*model, "recurrent.act.halt.bias").fill_(-30);
  KvCache all, ending;
  (void)model->hidden(some_ids(5, 1), {.cache = &all});
  (void)model->hidden(some_ids(5, 1), {.cache = &ending});
  int loops = 0;
  const LoopObserver count = [&](const LoopReport&) { ++loops; };
  for (int i = 0; i < 4; ++i) {
    const at::Tensor id = some_ids(1, static_cast<uint64_t>(i));
    EXPECT_TRUE(model->hidden(id, {.cache = &all})
                    .equal(model->hidden(id, {.cache = &ending, .adaptive = true, .observer = &count})));
  }
  EXPECT_EQ(loops, 4 * 4);
}

TEST_P(Decoding, LoopsEndWhereATokenHaltsAndTheTokenItselfDoesNotChange) {
  const auto model = small_model(small_config(GetParam()), at::kFloat);
  value(*model, "recurrent.act.halt.weight").mul_(4);
  value(*model, "recurrent.act.halt.bias").fill_(0.5);
  // Each row's first new token sees only positions that ran all loops, so that it equals the token that runs them all.
  std::vector<KvCache> caches(8);
  std::vector<at::Tensor> ids, expected;
  for (size_t b = 0; b < caches.size(); ++b) {
    const at::Tensor prompt = some_ids(3 + static_cast<int64_t>(b), b), id = some_ids(1, 3 * b + 1);
    KvCache own;
    (void)model->hidden(prompt, {.cache = &own});
    (void)model->hidden(prompt, {.cache = &caches[b]});
    expected.push_back(model->hidden(id, {.cache = &own}));
    ids.push_back(id);
  }
  std::vector<int64_t> rows_by_loop;
  const LoopObserver count = [&](const LoopReport& r) { rows_by_loop.push_back(r.state.size(0)); };
  const at::Tensor h = model->hidden(at::cat(ids), {.caches = caches, .adaptive = true, .observer = &count});
  EXPECT_CLOSE(h, at::cat(expected), 1e-5);
  ASSERT_FALSE(rows_by_loop.empty());
  EXPECT_EQ(rows_by_loop.front(), 8);
  EXPECT_TRUE(std::is_sorted(rows_by_loop.rbegin(), rows_by_loop.rend()));
  EXPECT_LT(std::accumulate(rows_by_loop.begin(), rows_by_loop.end(), int64_t{0}), 8 * 4) << "nobody halted";
  EXPECT_GT(rows_by_loop.size(), 1U) << "all halted at once";
  // The caches of all loops hold the new position; going on with all loops works.
  EXPECT_NO_THROW((void)model->hidden(at::cat(ids), {.caches = caches}));
  for (const KvCache& cache : caches) EXPECT_EQ(cache.bytes() > 0, true);
}

INSTANTIATE_TEST_SUITE_P(Attention, Decoding, ::testing::Values(AttentionType::mla, AttentionType::gqa),
                         [](const auto& which) { return which.param == AttentionType::mla ? "Mla" : "Gqa"; });

}  // namespace
}  // namespace mythos
