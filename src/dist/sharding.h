// Training's state shared out over processes: who keeps and updates what, and what moves when (ZeRO, Rajbhandari et
// al., 2020; fully sharded data parallelism, Zhao et al., 2023).
#pragma once

#include "dist/communicator.h"
#include "model/parameters.h"
#include "model/unit_hooks.h"

#include <memory>
#include <string_view>
#include <vector>

namespace mythos {

enum class ShardingMode {
  none,       ///< every rank has everything; gradients are summed
  optimizer,  ///< every rank has all weights and gradients, and updates a part of them
  full,       ///< weights are together only while they are used
  hybrid,     ///< full within a group of ranks (a machine), the groups are copies of each other
};
/// "none", "optimizer", "full", "hybrid"; usage Error for anything else.
ShardingMode sharding_mode_from(std::string_view name);

/// The ranks on each machine, if all have equally many and they follow each other; else 1.
int64_t ranks_per_machine(Communicator& world);

class Sharding final : public UnitHooks {
 public:
  struct Options {
    /// Ranks that share everything out among them, for hybrid; it must divide the number of ranks (usage Error).
    int64_t group = 1;
    /// For full and hybrid: gradients move after every micro-step, and none are kept whole between two; else once,
    /// after the last.
    bool reduce_every_micro_step = false;
  };
  Sharding(std::shared_ptr<Communicator> world, ShardingMode mode, const Options& options);

  [[nodiscard]] Communicator& world() const { return *world_; }
  /// For the store of the model.
  [[nodiscard]] Partition partition() const;
  /// Before anything else; the store must outlive this.
  void attach(ParameterStore& store);

  // ---- a step: begin, micro-steps, reduce, the update, publish ------------------------------------------------------
  void begin_step();
  /// `last`: gradients are complete after it, and move as soon as they are.
  void begin_micro_step(bool last);
  void end_micro_step();
  /// Gradients of what this rank updates are complete and those of all ranks.
  void reduce();
  /// Of all ranks: the sum of their losses, and the norm of all gradients. The same bits on every rank.
  struct Totals {
    double loss = 0;
    double norm = 0;
    int64_t first_bad = -1;  ///< the first rank whose own loss is not finite; -1: none
  };
  Totals totals(double loss, double squared_norm);
  /// After the update: weights that every rank has are made the same.
  void publish();

  // ---- beside steps -------------------------------------------------------------------------------------------------
  /// All weights are there from now on, for evaluation and the like; until release_all().
  void hold_all();
  void release_all();
  /// Buffers cut like values(): whole on the CPU of rank 0, by unit, and nothing elsewhere.
  [[nodiscard]] std::vector<at::Tensor> whole(const std::vector<at::Tensor>& own);
  /// Ranks 0 to writers() - 1 have one of each part together: 1 where every rank has everything.
  [[nodiscard]] int64_t writers() const { return group_size_; }
  /// A sum over what each rank updates, everything counted once.
  double sum_over_parts(double own);
  /// Bytes that this rank has sent.
  [[nodiscard]] int64_t bytes_sent() const;

  void before_forward(size_t unit) override;
  void after_forward(size_t unit) override;
  void before_backward(size_t unit) override;
  bool all_halted(bool own) override;

 private:
  struct Unit {
    bool held = false;
    Handle coming;   // values
    Handle leaving;  // gradients
    at::Tensor sum;  // of this micro-step, where every one has its own
  };
  void ask_for(size_t unit);
  void need(size_t unit);
  void let_go(size_t unit);
  void done_with(size_t unit);
  void start_reducing(size_t unit);
  void end_reducing(size_t unit);
  void end_all_reducing();

  std::shared_ptr<Communicator> world_;
  std::shared_ptr<Communicator> group_;     // who share everything out; null: nobody
  std::shared_ptr<Communicator> replicas_;  // who have the same part; null: nobody else
  ShardingMode mode_;
  int64_t group_size_ = 1;
  bool transient_ = false;
  bool every_micro_step_ = false;
  ParameterStore* store_ = nullptr;
  std::vector<Unit> units_;
  std::vector<size_t> reducing_;  // in the order in which they began
  bool last_ = false;
  bool training_ = false;  // a micro-step with a backward pass is on
  bool all_held_ = false;
};

}  // namespace mythos
