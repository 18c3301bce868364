#include "config/batch_plan.h"

#include "base/error.h"
#include "base/units.h"

#include <algorithm>

namespace mythos {

BatchPlan batch_plan(const TrainSection& train, int64_t micro_batch, int64_t ranks) {
  if (micro_batch < 1 || micro_batch > 65536) {
    throw usage_error(fmt::format("a micro-batch of {} rows is not possible", micro_batch),
                      "train.micro_batch is 1 to 65,536");
  }
  if (ranks < 1 || ranks > (int64_t{1} << 20)) throw usage_error(fmt::format("{} ranks are not possible", ranks));
  const int64_t at_once = micro_batch * train.seq_len * ranks;  // below 2^60 by the three ranges
  if (at_once > (int64_t{1} << 33)) {
    throw usage_error(fmt::format("{} tokens at once are not possible ({} rows of {} on {} ranks)",
                                  with_commas(at_once), micro_batch, train.seq_len, ranks));
  }
  BatchPlan plan;
  plan.micro_batch = micro_batch;
  plan.grad_accum = std::max<int64_t>(1, train.global_batch_tokens / at_once);
  plan.global_batch_tokens = plan.grad_accum * at_once;
  plan.steps = train.steps > 0 ? train.steps : train.target_tokens / plan.global_batch_tokens;
  if (plan.steps == 0 && train.target_tokens > 0) {
    throw usage_error(fmt::format("train.target_tokens is {}, less than one step of {} tokens",
                                  with_commas(train.target_tokens), with_commas(plan.global_batch_tokens)),
                      "raise target_tokens, or lower global_batch_tokens or micro_batch");
  }
  return plan;
}

}  // namespace mythos
