#include "model/cache.h"

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

int64_t CacheEntry::bytes() const {
  return first_.defined() ? static_cast<int64_t>(first_.nbytes() + second_.nbytes()) : 0;
}

CacheEntry& KvCache::entry(std::vector<CacheEntry>& list, int64_t i) {
  if (static_cast<size_t>(i) >= list.size()) list.resize(static_cast<size_t>(i) + 1);
  return list[static_cast<size_t>(i)];
}

int64_t KvCache::bytes() const {
  int64_t n = 0;
  for (const auto* list : {&prelude_, &loop_, &coda_}) {
    for (const auto& e : *list) n += e.bytes();
  }
  return n;
}

}  // namespace mythos
