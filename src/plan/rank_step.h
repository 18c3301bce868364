// An optimizer step of one rank as dist/sharding does it, without doing it: what is sent, what is there at a time, and
// what is waited for. The calls are those that Sharding gets, in their order.
#pragma once

#include "dist/sharding.h"
#include "plan/memory.h"

#include <array>
#include <cstdint>
#include <vector>

namespace mythos {

/// A unit of the flat layout (model/parameters.h), in their order.
struct UnitCost {
  int64_t shard = 0;                 ///< elements of each part: Partition::shard_size()
  double forward = 0, backward = 0;  ///< seconds of computing in a micro-step, of unit 0 without the head
  double gather = 0;                 ///< seconds until values are together
  double reduce = 0;                 ///< seconds until gradients are where they are used
  double sum = 0;                    ///< seconds until copies of the same part have the sum of theirs; for hybrid
};

struct RankStepRequest {
  ShardingMode mode = ShardingMode::full;
  int64_t parts = 1;        ///< ranks that share everything out
  int64_t copies = 1;       ///< ranks that have the same part
  int64_t element = 2;      ///< bytes of a compute value; 4: there are no copies beside the master values
  int64_t micro_steps = 1;  ///< on each rank
  /// Gradients move after every micro-step, for full and hybrid; else once, after the last.
  bool reduce_every_micro_step = false;
  std::vector<UnitCost> units;
  size_t looped = 0;  ///< number of the looped unit: those before it are the prelude's, those behind it the coda's
  double head = 0;    ///< seconds of the head and the loss, with their gradient
};

struct HeldUnits {
  int64_t values = 0;     ///< bytes in compute type
  int64_t gradients = 0;  ///< bytes, in compute type and in fp32
  [[nodiscard]] int64_t total() const { return values + gradients; }
};

struct RankStep {
  // Bytes that the rank sends, as Communicator::bytes_sent counts.
  int64_t micro_step_gathered = 0;
  int64_t gathered = 0, reduced = 0;  ///< in the whole step

  /// Whole units at the moment of each phase when most of them are there, by its number; none where all always are.
  std::array<HeldUnits, n_phases> held{};

  double micro_step = 0;  ///< seconds of one that is not the last; of the last where there is no other
  double step = 0;        ///< seconds of all, with what comes after them
  double computing = 0;   ///< seconds of it
  double traffic = 0;     ///< seconds that collectives take by themselves
};

RankStep play_step(const RankStepRequest& request);

}  // namespace mythos
