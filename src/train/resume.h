// What a run that goes on says about where it stands, so that it can be compared with what came before.
#pragma once

#include "checkpoint/hasher.h"
#include "model/parameters.h"
#include "optim/adamw.h"

#include <cstdint>
#include <span>
#include <string>

namespace mythos {

/// The ids of a step's rows, in the order in which they are trained on, as 16 hexadecimal digits: the same rows give
/// the same digits however they are dealt to micro-batches.
class BatchHash {
 public:
  void add(std::span<const int32_t> row) { hasher_.add(row.data(), row.size_bytes()); }
  [[nodiscard]] std::string text() const { return hash_text(hasher_.value()); }

 private:
  Hasher hasher_;
};

/// Euclidean norms, summed in fp64.
struct StateNorms {
  double weights = 0;
  double first_moments = 0;
  double second_moments = 0;
};
StateNorms state_norms(const ParameterStore& parameters, const AdamW& optimizer);

}  // namespace mythos
