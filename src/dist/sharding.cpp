#include "dist/sharding.h"

#include "base/error.h"
#include "base/machine.h"

#include <ATen/ATen.h>

#include <cmath>

namespace mythos {

ShardingMode sharding_mode_from(std::string_view name) {
  if (name == "none") return ShardingMode::none;
  if (name == "optimizer") return ShardingMode::optimizer;
  if (name == "full") return ShardingMode::full;
  if (name == "hybrid") return ShardingMode::hybrid;
  throw usage_error(fmt::format("train.sharding is \"{}\", it must be none, optimizer, full or hybrid", name));
}

int64_t ranks_per_machine(Communicator& world) {
  const auto hosts = all_texts(world, host_name());
  size_t n = 1;
  while (n < hosts.size() && hosts[n] == hosts[0]) ++n;
  if (hosts.size() % n != 0) return 1;
  for (size_t r = 0; r < hosts.size(); ++r) {
    if (hosts[r] != hosts[r - r % n] || (r % n == 0 && r > 0 && hosts[r] == hosts[r - 1])) return 1;
  }
  return static_cast<int64_t>(n);
}

Sharding::Sharding(std::shared_ptr<Communicator> world, ShardingMode mode, const Options& options)
    : world_(std::move(world)),
      mode_(mode),
      transient_(mode == ShardingMode::full || mode == ShardingMode::hybrid),
      every_micro_step_(transient_ && options.reduce_every_micro_step) {
  const int64_t group = options.group;
  switch (mode_) {
    case ShardingMode::none:
      replicas_ = world_;
      break;
    case ShardingMode::optimizer:
    case ShardingMode::full:
      group_ = world_;
      break;
    case ShardingMode::hybrid:
      if (group < 1 || world_->size() % group != 0) {
        throw usage_error(fmt::format("{} ranks are not groups of {}", world_->size(), group),
                          "let train.sharding_group divide the number of ranks");
      }
      group_ = world_->split(world_->rank() / group);
      replicas_ = world_->split(world_->rank() % group);
      break;
  }
  if (group_) group_size_ = group_->size();
}

Partition Sharding::partition() const {
  if (!group_) return {};
  return {.parts = group_->size(), .index = group_->rank(), .transient = transient_};
}

void Sharding::attach(ParameterStore& store) {
  store_ = &store;
  units_ = std::vector<Unit>(store.units());
}

void Sharding::begin_step() {
  store_->zero_gradients();
  if (!every_micro_step_) return;
  for (size_t u = 0; u < units_.size(); ++u) store_->gradients(u).zero_();
}

void Sharding::begin_micro_step(bool last) {
  last_ = last;
  training_ = true;
}

void Sharding::end_micro_step() {
  done_with(0);
  training_ = false;
  if (!last_) end_all_reducing();
}

// Asked for in the order in which they are needed: the next one comes while this one is computed with.
void Sharding::ask_for(size_t unit) {
  Unit& u = units_[unit];
  if (!transient_ || u.held) return;
  store_->hold_values(unit);
  store_->refresh_compute(unit);
  const at::Tensor whole = store_->whole_values(unit).variable_data();
  u.coming = group_->all_gather(whole, whole.narrow(0, store_->own_begin(unit), store_->shard(unit)));
  u.held = true;
}

void Sharding::need(size_t unit) {
  ask_for(unit);
  wait(units_[unit].coming);
}

void Sharding::let_go(size_t unit) {
  if (!transient_ || all_held_ || !units_[unit].held) return;
  wait(units_[unit].coming);
  store_->release_values(unit);
  units_[unit].held = false;
}

void Sharding::before_forward(size_t unit) {
  need(unit);
  if (unit + 1 < units_.size()) ask_for(unit + 1);
  // The head's gradient is added in the forward pass.
  if (unit == 0 && training_) store_->hold_gradients(0);
}

void Sharding::after_forward(size_t unit) {
  // The last one is needed next.
  if (!training_ || unit + 1 < units_.size()) let_go(unit);
}

void Sharding::before_backward(size_t unit) {
  if (unit + 1 == units_.size()) {
    let_go(0);
  } else {
    done_with(unit + 1);
  }
  if (unit == 0) return;
  need(unit);
  if (unit > 1) ask_for(unit - 1);
  store_->hold_gradients(unit);
}

bool Sharding::all_halted(bool own) { return all_of(*world_, own); }

void Sharding::done_with(size_t unit) {
  let_go(unit);
  if (last_ || every_micro_step_) start_reducing(unit);
}

void Sharding::start_reducing(size_t unit) {
  // Whole gradients that wait to be sent take memory.
  if (transient_ && reducing_.size() > 1) {
    end_reducing(reducing_.front());
    reducing_.erase(reducing_.begin());
  }
  const at::Tensor sums = store_->whole_gradients(unit);
  Unit& u = units_[unit];
  if (every_micro_step_) u.sum = at::empty_like(store_->gradients(unit));
  const at::Tensor own = every_micro_step_ ? u.sum : store_->gradients(unit);
  u.leaving = group_ ? group_->reduce_scatter(own, sums) : replicas_->all_reduce(sums);
  reducing_.push_back(unit);
}

void Sharding::end_reducing(size_t unit) {
  Unit& u = units_[unit];
  wait(u.leaving);
  store_->release_gradients(unit);
  if (!u.sum.defined()) return;
  store_->gradients(unit).add_(u.sum);
  u.sum.reset();
}

void Sharding::end_all_reducing() {
  for (const size_t unit : reducing_) end_reducing(unit);
  reducing_.clear();
}

void Sharding::reduce() {
  end_all_reducing();
  if (!group_ || !replicas_) return;
  std::vector<Handle> sums;
  for (size_t u = 0; u < units_.size(); ++u) sums.push_back(replicas_->all_reduce(store_->gradients(u)));
  for (Handle& sum : sums) wait(sum);
}

Sharding::Totals Sharding::totals(double loss, double squared_norm) {
  const auto all = all_numbers(*world_, std::vector<double>{loss, squared_norm});
  Totals totals;
  double squares = 0;
  for (size_t r = 0; r < all.size(); ++r) {
    totals.loss += all[r][0];
    // Of each part one copy, the same for everybody.
    if (static_cast<int64_t>(r) < group_size_) squares += all[r][1];
    if (totals.first_bad < 0 && !std::isfinite(all[r][0])) totals.first_bad = static_cast<int64_t>(r);
  }
  totals.norm = std::sqrt(squares);
  return totals;
}

void Sharding::publish() {
  if (transient_ || !group_) return;
  std::vector<Handle> coming;
  for (size_t u = 0; u < units_.size(); ++u) {
    const at::Tensor whole = store_->whole_values(u);
    coming.push_back(group_->all_gather(whole, whole.narrow(0, store_->own_begin(u), store_->shard(u))));
  }
  for (Handle& handle : coming) wait(handle);
}

void Sharding::hold_all() {
  for (size_t u = 0; u < units_.size(); ++u) need(u);
  all_held_ = true;
}

void Sharding::release_all() {
  all_held_ = false;
  for (size_t u = 0; u < units_.size(); ++u) let_go(u);
}

std::vector<at::Tensor> Sharding::whole(const std::vector<at::Tensor>& own) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> out;
  for (size_t u = 0; u < own.size(); ++u) {
    at::Tensor all = own[u].detach();
    if (group_ && group_->size() > 1) {
      all = at::empty({group_->size() * own[u].numel()}, own[u].options());
      Handle handle = group_->all_gather(all, own[u].detach());
      wait(handle);
    }
    if (world_->rank() == 0) out.push_back(all.cpu());
  }
  return out;
}

double Sharding::sum_over_parts(double own) {
  double sum = 0;
  const auto all = all_numbers(*world_, std::vector<double>{own});
  for (int64_t r = 0; r < group_size_; ++r) sum += all[static_cast<size_t>(r)][0];
  return sum;
}

int64_t Sharding::bytes_sent() const {
  int64_t bytes = world_->bytes_sent();
  if (group_ && group_ != world_) bytes += group_->bytes_sent();
  if (replicas_ && replicas_ != world_) bytes += replicas_->bytes_sent();
  return bytes;
}

}  // namespace mythos
