#include "plan/rank_step.h"

#include <algorithm>

namespace mythos {
namespace {

constexpr int64_t master = 4;  // bytes

class Player {
 public:
  explicit Player(const RankStepRequest& request)
      : r_(request),
        transient_(r_.mode == ShardingMode::full || r_.mode == ShardingMode::hybrid),
        every_(transient_ && r_.reduce_every_micro_step),
        units_(r_.units.size()) {}

  RankStep play() {
    // All micro-steps between the second and the last are alike.
    const int64_t played = std::min<int64_t>(r_.micro_steps, 3);
    for (int64_t i = 0; i < played; ++i) {
      const double begin = now_, traffic = out_.traffic;
      const int64_t gathered = out_.gathered, reduced = out_.reduced;
      micro_step(i + 1 == played);
      if (i == 0) {
        out_.micro_step = now_ - begin;
        out_.micro_step_gathered = out_.gathered - gathered;
      } else if (i == 1 && played == 3) {
        const int64_t more = r_.micro_steps - 3;
        out_.gathered += more * (out_.gathered - gathered);
        out_.reduced += more * (out_.reduced - reduced);
        out_.traffic += static_cast<double>(more) * (out_.traffic - traffic);
        skipped_ = static_cast<double>(more) * (now_ - begin);
      }
    }
    reduce();
    publish();
    out_.step = now_ + skipped_;
    double micro = r_.head;
    for (const UnitCost& u : r_.units) micro += u.forward + u.backward;
    out_.computing = static_cast<double>(r_.micro_steps) * micro;
    return out_;
  }

 private:
  struct Unit {
    bool held = false, gradients = false;
    double coming = 0, leaving = 0;  // when they are done
  };

  int64_t whole(size_t u) const { return r_.parts * r_.units[u].shard; }
  int64_t value_bytes(size_t u) const { return whole(u) * r_.element; }
  int64_t gradient_bytes(size_t u) const { return whole(u) * master; }
  // One rank's bytes in an all-reduce over the copies, as NCCL's are counted.
  int64_t all_reduce_bytes(size_t u) const { return 2 * (r_.copies - 1) * r_.units[u].shard * master / r_.copies; }

  // Collectives of one communicator follow each other.
  double send(double& channel, double seconds) {
    channel = std::max(channel, now_) + seconds;
    out_.traffic += seconds;
    return channel;
  }
  void wait(double until) { now_ = std::max(now_, until); }
  void enter(Phase phase) {
    phase_ = static_cast<size_t>(phase);
    look();
  }
  void look() {
    const HeldUnits now{.values = values_, .gradients = gradients_};
    if (now.total() > out_.held[phase_].total()) out_.held[phase_] = now;
  }

  void micro_step(bool last) {
    last_ = last;
    const size_t n = units_.size();
    enter(Phase::loop_forward);
    before_forward(0);
    now_ += r_.units[0].forward;
    for (size_t u = 1; u < n; ++u) {
      before_forward(u);
      now_ += r_.units[u].forward;
      if (u + 1 < n) let_go(u);
    }
    enter(Phase::loss);
    now_ += r_.head;
    for (size_t u = n; u-- > 0;) {
      before_backward(u);
      now_ += r_.units[u].backward;
    }
    done_with(0);
    if (!last_) end_all_reducing();
  }

  void before_forward(size_t u) {
    need(u);
    if (u + 1 < units_.size()) ask_for(u + 1);
    if (u == 0) hold_gradients(0);
  }

  void before_backward(size_t u) {
    if (u + 1 == units_.size()) {
      let_go(0);
    } else {
      done_with(u + 1);
    }
    enter(u > r_.looped ? Phase::coda_backward : u == r_.looped ? Phase::loop_backward : Phase::prelude_backward);
    if (u == 0) return;
    need(u);
    if (u > 1) ask_for(u - 1);
    hold_gradients(u);
  }

  void ask_for(size_t u) {
    if (!transient_ || units_[u].held) return;
    units_[u].held = true;
    values_ += value_bytes(u);
    look();
    units_[u].coming = send(group_, r_.units[u].gather);
    out_.gathered += (r_.parts - 1) * r_.units[u].shard * r_.element;
  }
  void need(size_t u) {
    ask_for(u);
    wait(units_[u].coming);
  }
  void let_go(size_t u) {
    if (!units_[u].held) return;
    wait(units_[u].coming);
    units_[u].held = false;
    values_ -= value_bytes(u);
  }
  void hold_gradients(size_t u) {
    if (!transient_ || units_[u].gradients) return;
    units_[u].gradients = true;
    gradients_ += gradient_bytes(u);
    look();
  }

  void done_with(size_t u) {
    let_go(u);
    if (last_ || every_) start_reducing(u);
  }
  void start_reducing(size_t u) {
    if (transient_ && reducing_.size() > 1) {
      end_reducing(reducing_.front());
      reducing_.erase(reducing_.begin());
    }
    if (r_.mode == ShardingMode::none) {
      units_[u].leaving = send(copies_, r_.units[u].reduce);
      out_.reduced += all_reduce_bytes(u);
    } else {
      units_[u].leaving = send(group_, r_.units[u].reduce);
      out_.reduced += (r_.parts - 1) * r_.units[u].shard * master;
    }
    // A sum of its own, beside that of the micro-steps before.
    if (every_) gradients_ += master * r_.units[u].shard;
    look();
    reducing_.push_back(u);
  }
  void end_reducing(size_t u) {
    wait(units_[u].leaving);
    if (every_) gradients_ -= master * r_.units[u].shard;
    if (!units_[u].gradients) return;
    units_[u].gradients = false;
    gradients_ -= gradient_bytes(u);
  }
  void end_all_reducing() {
    for (const size_t u : reducing_) end_reducing(u);
    reducing_.clear();
  }

  void reduce() {
    end_all_reducing();
    if (r_.mode != ShardingMode::hybrid) return;
    for (size_t u = 0; u < units_.size(); ++u) {
      wait(send(copies_, r_.units[u].sum));
      out_.reduced += all_reduce_bytes(u);
    }
  }
  void publish() {
    if (r_.mode != ShardingMode::optimizer) return;
    for (size_t u = 0; u < units_.size(); ++u) {
      wait(send(group_, r_.units[u].gather));
      out_.gathered += (r_.parts - 1) * r_.units[u].shard * r_.element;
    }
  }

  const RankStepRequest& r_;
  bool transient_, every_, last_ = false;
  std::vector<Unit> units_;
  std::vector<size_t> reducing_;
  double now_ = 0, skipped_ = 0;
  size_t phase_ = 0;
  double group_ = 0, copies_ = 0;  // when the communicators are free
  int64_t values_ = 0, gradients_ = 0;
  RankStep out_;
};

}  // namespace

RankStep play_step(const RankStepRequest& request) { return Player(request).play(); }

}  // namespace mythos
