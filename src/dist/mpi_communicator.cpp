#include "dist/mpi_communicator.h"

#include "base/error.h"

#include <ATen/ATen.h>
#include <mpi.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <thread>

namespace mythos {
namespace {

constexpr int64_t largest_message = int64_t{4} << 20;  // bytes: what is under way is seen to move
constexpr int64_t chunk_bytes = int64_t{1} << 20;      // of a sum, at a time

using Clock = std::chrono::steady_clock;

// Waits without keeping a processor from others for long: ranks may be more than processors, and one may evaluate while
// the others wait. As long as something arrives nobody sleeps.
void wait_for(std::vector<MPI_Request>& requests) {
  std::vector<int> done(requests.size());
  auto moved = Clock::now();
  for (int64_t tries = 0; !requests.empty(); ++tries) {
    int n = 0;
    MPI_Testsome(static_cast<int>(requests.size()), requests.data(), &n, done.data(), MPI_STATUSES_IGNORE);
    if (n == MPI_UNDEFINED) break;  // none is left
    if (n > 0) {
      tries = 0;
      moved = Clock::now();
    } else if (tries > 100) {
      if (Clock::now() - moved < std::chrono::milliseconds(20)) {
        ::sched_yield();
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
    }
  }
  requests.clear();
}

std::byte* bytes_of(const at::Tensor& t) { return static_cast<std::byte*>(t.data_ptr()); }

struct Ranks {
  MPI_Comm comm;
  int rank, size;
};

// Messages of one collective between each pair of ranks, in pieces.
void post(std::vector<MPI_Request>& requests, bool send, std::byte* data, int64_t bytes, int peer, int tag,
          const Ranks& ranks) {
  while (bytes > 0) {
    const auto n = static_cast<int>(std::min(bytes, largest_message));
    requests.emplace_back();
    if (send) {
      MPI_Isend(data, n, MPI_BYTE, peer, tag, ranks.comm, &requests.back());
    } else {
      MPI_Irecv(data, n, MPI_BYTE, peer, tag, ranks.comm, &requests.back());
    }
    data += n;
    bytes -= n;
  }
}

// A tensor's even parts by rank; the last may be shorter or empty.
struct Parts {
  int64_t n, each;
  Parts(int64_t numel, int size) : n(numel), each((numel + size - 1) / size) {}
  [[nodiscard]] int64_t begin(int64_t r) const { return std::min(n, r * each); }
  [[nodiscard]] int64_t size(int64_t r) const { return std::min(n, (r + 1) * each) - begin(r); }
};

// Every rank's part of `whole` comes to its place.
class Gather final : public Pending {
 public:
  Gather(const Ranks& ranks, const at::Tensor& whole, Parts parts, int tag) : kept_(whole) {
    const int64_t element = whole.element_size();
    for (int k = 1; k < ranks.size; ++k) {
      const int from = (ranks.rank - k + ranks.size) % ranks.size;
      post(requests_, false, bytes_of(whole) + parts.begin(from) * element, parts.size(from) * element, from, tag,
           ranks);
    }
    for (int k = 1; k < ranks.size; ++k) {
      const int to = (ranks.rank + k) % ranks.size;
      post(requests_, true, bytes_of(whole) + parts.begin(ranks.rank) * element, parts.size(ranks.rank) * element, to,
           tag, ranks);
    }
  }
  void wait() override { wait_for(requests_); }

 private:
  at::Tensor kept_;
  std::vector<MPI_Request> requests_;
};

// Every rank sends the others their parts of `in`, and adds up its own, a chunk at a time, in the order of ranks.
class ReduceScatter final : public Pending {
 public:
  ReduceScatter(const Ranks& ranks, const at::Tensor& out, const at::Tensor& in, Parts parts, int tag)
      : ranks_(ranks),
        out_(out),
        in_(in),
        own_(in.narrow(0, parts.begin(ranks.rank), parts.size(ranks.rank))),
        tag_(tag),
        chunk_(std::max<int64_t>(1, chunk_bytes / in.element_size())),
        chunks_((own_.numel() + chunk_ - 1) / chunk_) {
    const int64_t element = in.element_size();
    for (int k = 1; k < ranks.size; ++k) {
      const int to = (ranks.rank + k) % ranks.size;
      for (int64_t at = 0; at < parts.size(to); at += chunk_) {
        post(sends_, true, bytes_of(in) + (parts.begin(to) + at) * element,
             std::min(chunk_, parts.size(to) - at) * element, to, tag_, ranks_);
      }
    }
    if (chunks_ == 0) return;
    for (at::Tensor& landing : landing_) {
      landing = at::empty({ranks.size, std::min(chunk_, own_.numel())}, in.options().requires_grad(false));
    }
    receive(0);
    if (chunks_ > 1) receive(1);
  }
  void wait() override {
    const at::NoGradGuard no_grad;
    for (int64_t k = 0; k < chunks_; ++k) {
      auto& requests = receives_[static_cast<size_t>(k % 2)];
      wait_for(requests);
      add(k);
      if (k + 2 < chunks_) receive(k + 2);
    }
    wait_for(sends_);
  }

 private:
  [[nodiscard]] int64_t size_of(int64_t k) const { return std::min(chunk_, own_.numel() - k * chunk_); }
  void receive(int64_t k) {
    const auto slot = static_cast<size_t>(k % 2);
    for (int r = 0; r < ranks_.size; ++r) {
      if (r == ranks_.rank) continue;
      post(receives_[slot], false, bytes_of(landing_[slot].select(0, r)), size_of(k) * in_.element_size(), r, tag_,
           ranks_);
    }
  }
  void add(int64_t k) {
    at::Tensor& landing = landing_[static_cast<size_t>(k % 2)];
    const int64_t n = size_of(k);
    const auto of = [&](int r) {
      return r == ranks_.rank ? own_.narrow(0, k * chunk_, n) : landing.select(0, r).narrow(0, 0, n);
    };
    at::Tensor sum = of(0) + of(1);
    for (int r = 2; r < ranks_.size; ++r) sum.add_(of(r));
    out_.narrow(0, k * chunk_, n).copy_(sum);
  }

  Ranks ranks_;
  at::Tensor out_, in_, own_;
  int tag_;
  int64_t chunk_, chunks_;
  std::array<at::Tensor, 2> landing_;
  std::array<std::vector<MPI_Request>, 2> receives_;
  std::vector<MPI_Request> sends_;
};

// A sum that everybody gets: each rank adds up a part, then all parts are gathered.
class AllReduce final : public Pending {
 public:
  AllReduce(const Ranks& ranks, const at::Tensor& tensor, int tag)
      : ranks_(ranks),
        tensor_(tensor),
        parts_(tensor.numel(), ranks.size),
        tag_(tag),
        sums_(ranks, tensor.narrow(0, parts_.begin(ranks.rank), parts_.size(ranks.rank)), tensor, parts_, tag) {}
  void wait() override {
    sums_.wait();
    Gather(ranks_, tensor_, parts_, tag_).wait();
  }

 private:
  Ranks ranks_;
  at::Tensor tensor_;
  Parts parts_;
  int tag_;
  ReduceScatter sums_;
};

class MpiCommunicator final : public Communicator {
 public:
  explicit MpiCommunicator(MPI_Comm comm) : ranks_{comm, 0, 1} {
    MPI_Comm_rank(comm, &ranks_.rank);
    MPI_Comm_size(comm, &ranks_.size);
  }
  // Communicators go with the process.

  [[nodiscard]] int64_t rank() const override { return ranks_.rank; }
  [[nodiscard]] int64_t size() const override { return ranks_.size; }

  [[nodiscard]] Handle all_gather(const at::Tensor& out, const at::Tensor& in) override {
    check(out);
    check(in);
    TORCH_CHECK(out.numel() == in.numel() * size() && out.dtype() == in.dtype(), "all_gather of ", in.numel(), " to ",
                out.numel());
    const at::Tensor whole = out.variable_data();
    const at::Tensor own = whole.narrow(0, rank() * in.numel(), in.numel());
    if (own.data_ptr() != in.data_ptr()) own.copy_(in);
    sent_ += (size() - 1) * static_cast<int64_t>(in.nbytes());
    return std::make_unique<Gather>(ranks_, whole, Parts(whole.numel(), ranks_.size), tag());
  }

  [[nodiscard]] Handle reduce_scatter(const at::Tensor& out, const at::Tensor& in) override {
    check(out);
    check(in);
    TORCH_CHECK(in.numel() == out.numel() * size() && out.dtype() == in.dtype(), "reduce_scatter of ", in.numel(),
                " to ", out.numel());
    if (size() == 1) {
      if (out.data_ptr() != in.data_ptr()) out.copy_(in);
      return nullptr;
    }
    sent_ += (size() - 1) * static_cast<int64_t>(out.nbytes());
    return std::make_unique<ReduceScatter>(ranks_, out, in, Parts(in.numel(), ranks_.size), tag());
  }

  [[nodiscard]] Handle all_reduce(const at::Tensor& tensor) override {
    check(tensor);
    if (size() == 1) return nullptr;
    const Parts parts(tensor.numel(), ranks_.size);
    const int64_t own = parts.size(rank());
    sent_ += (tensor.numel() - own + (size() - 1) * own) * tensor.element_size();
    return std::make_unique<AllReduce>(ranks_, tensor, tag());
  }

  [[nodiscard]] Handle broadcast(const at::Tensor& tensor, int64_t from) override {
    check(tensor);
    std::byte* data = bytes_of(tensor);
    auto bytes = static_cast<int64_t>(tensor.nbytes());
    while (bytes > 0) {
      const auto n = static_cast<int>(std::min(bytes, largest_message));
      std::vector<MPI_Request> request(1);
      MPI_Ibcast(data, n, MPI_BYTE, static_cast<int>(from), ranks_.comm, request.data());
      wait_for(request);
      data += n;
      bytes -= n;
    }
    if (from == rank()) sent_ += (size() - 1) * static_cast<int64_t>(tensor.nbytes());
    return nullptr;
  }

  void barrier() override {
    std::vector<MPI_Request> request(1);
    MPI_Ibarrier(ranks_.comm, request.data());
    wait_for(request);
  }

  [[nodiscard]] std::shared_ptr<Communicator> split(int64_t group) override {
    MPI_Comm part = MPI_COMM_NULL;
    MPI_Comm_split(ranks_.comm, static_cast<int>(group), ranks_.rank, &part);
    return std::make_shared<MpiCommunicator>(part);
  }

  [[nodiscard]] int64_t bytes_sent() const override { return sent_; }

  void leave() override {
    barrier();
    MPI_Finalize();
  }

 private:
  static void check(const at::Tensor& t) {
    TORCH_CHECK(t.device().is_cpu() && t.is_contiguous() && t.dim() == 1, "MPI takes flat tensors on the CPU");
  }
  // Collectives under way are told apart, however their messages overtake each other.
  int tag() { return next_tag_ = (next_tag_ + 1) % 30'000; }

  Ranks ranks_;
  int next_tag_ = 0;
  int64_t sent_ = 0;
};

}  // namespace

std::shared_ptr<Communicator> mpi_world() {
  int there = 0;
  MPI_Initialized(&there);
  if (there == 0) {
    int provided = MPI_THREAD_SINGLE;
    // One thread speaks MPI, others compute and write.
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
    if (provided < MPI_THREAD_FUNNELED) throw failure("this MPI cannot be used in a program with threads");
  }
  return std::make_shared<MpiCommunicator>(MPI_COMM_WORLD);
}

}  // namespace mythos
