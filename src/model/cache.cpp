#include "model/cache.h"

#include "base/error.h"

namespace mythos {
namespace {

void append_to(at::Tensor& storage, int64_t length, const at::Tensor& piece) {
  const int64_t needed = length + piece.size(1);
  if (!storage.defined() || storage.size(1) < needed) {
    auto shape = piece.sizes().vec();
    shape[1] = std::max<int64_t>(needed, std::max<int64_t>(64, 2 * length));
    at::Tensor grown = at::empty(shape, piece.options());
    if (length > 0) grown.narrow(1, 0, length).copy_(storage.narrow(1, 0, length));
    storage = grown;
  }
  storage.narrow(1, length, piece.size(1)).copy_(piece);
}

}  // namespace

CacheEntry::Pair CacheEntry::append(const at::Tensor& first, const at::Tensor& second) {
  append_to(first_, length_, first);
  append_to(second_, length_, second);
  length_ += first.size(1);
  return {first_.narrow(1, 0, length_), second_.narrow(1, 0, length_)};
}

void CacheEntry::append_newest_of(const CacheEntry& other) {
  TORCH_CHECK(other.length_ > length_, "a cache of ", other.length_, " positions has no newer one than one of ",
              length_);
  (void)append(other.first_.narrow(1, other.length_ - 1, 1), other.second_.narrow(1, other.length_ - 1, 1));
}

int64_t CacheEntry::bytes() const {
  return first_.defined() ? static_cast<int64_t>(first_.nbytes() + second_.nbytes()) : 0;
}

CacheEntry& KvCache::entry(std::vector<CacheEntry>& list, int64_t i) {
  if (static_cast<size_t>(i) >= list.size()) list.resize(static_cast<size_t>(i) + 1);
  return list[static_cast<size_t>(i)];
}

void KvCache::require_loops(int64_t loops) {
  if (length_ > 0 && loops != loops_) {
    throw usage_error(fmt::format("{} loops asked, the {} positions before were made with {}", loops, length_, loops_),
                      "begin anew, or keep to one number of loops");
  }
  loops_ = loops;
}

std::vector<Place> Places::prelude(int64_t layer) const {
  return each([layer](KvCache& c) { return &c.prelude(layer); });
}
std::vector<Place> Places::loop(int64_t t) const {
  return each([t](KvCache& c) { return &c.loop(t); });
}
std::vector<Place> Places::coda(int64_t layer) const {
  return each([layer](KvCache& c) { return &c.coda(layer); });
}

Places Places::of(const std::vector<int64_t>& rows) const {
  Places some;
  for (const int64_t row : rows) {
    const auto i = static_cast<size_t>(row);
    some.add(positions_[i], caches_[i]);
  }
  return some;
}

int64_t KvCache::bytes() const {
  int64_t n = 0;
  for (const auto* list : {&prelude_, &loop_, &coda_}) {
    for (const auto& e : *list) n += e.bytes();
  }
  return n;
}

}  // namespace mythos
