// The parts of a training step by which its time is told. Ops mark what they do; nobody listening, that costs nothing.
#pragma once

#include <ATen/record_function.h>

#include <array>
#include <cstddef>

namespace mythos {

enum class Part {
  head,         ///< the LM head and the loss, forward and backward
  attention,    ///< scores, softmax and weighted values
  experts,      ///< routed and shared experts: routing, GEMMs, activation, combination
  projections,  ///< the other GEMMs
  elementwise,  ///< norms, residuals, the loop's update, copies: all that is none of the others
  optimizer,    ///< gradient norm, update, clearing
  waiting,      ///< for data, or for the device
};
inline constexpr std::array part_names{"head",        "attention", "experts", "projections",
                                       "elementwise", "optimizer", "waiting"};

/// Marks what runs while it lives. LibTorch's own profiler sees it too, as "mythos.head" etc.
class PartScope {
 public:
  explicit PartScope(Part part) : record_(at::RecordScope::USER_SCOPE) {
    if (record_.isActive()) record_.before(names_[static_cast<size_t>(part)]);
  }

 private:
  static constexpr std::array names_{"mythos.head",        "mythos.attention", "mythos.experts", "mythos.projections",
                                     "mythos.elementwise", "mythos.optimizer", "mythos.waiting"};
  at::RecordFunction record_;
};

}  // namespace mythos
