#include "data/loader.h"

#include "base/error.h"
#include "base/units.h"
#include "data/lane.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>

namespace mythos {
namespace {

void check_separator(const DataOptions& options, const Encoder& encoder) {
  if (!options.document_separator) return;
  if (!encoder.end_of_text) {
    throw usage_error("data.document_separator needs an end-of-text token and the tokenizer has none",
                      "set data.document_separator to false, or use another tokenizer");
  }
  const int64_t id = *encoder.end_of_text;
  if (options.vocab_size > 0 && id >= options.vocab_size) {
    throw usage_error(
        fmt::format("data.document_separator puts id {} between documents, and the model's vocabulary of {} "
                    "does not hold it",
                    id, with_commas(options.vocab_size)),
        fmt::format("set model.vocab_size to {}", id + 1));
  }
}

void check_ranks(const DataOptions& options, const UnitOrder& order, size_t units) {
  if (options.world <= order.lanes()) return;
  const std::string what = fmt::format("{} ranks cannot share {} lanes", options.world, order.lanes());
  if (static_cast<int64_t>(units) >= options.world) {
    throw usage_error(what, fmt::format("set data.lanes to {} or more", options.world));
  }
  throw usage_error(
      what + fmt::format(": {} has only {} unit{} of reading", options.source, units, units == 1 ? "" : "s"),
      fmt::format("use at most {} rank{}, or data with more row groups", units, units == 1 ? "" : "s"));
}

// What a saved position must agree with.
Json identity_of(const Corpus& corpus, const DataOptions& options, const Encoder& encoder) {
  Json identity{{"source", corpus.manifest()},
                {"text_column", options.text_column},
                {"tokenizer", encoder.fingerprint},
                {"seq_len", options.seq_len},
                {"lanes", options.lanes},
                {"document_separator", options.document_separator},
                {"held_out_documents", options.validation_source.empty() ? options.validation_documents : 0},
                {"shuffle", options.shuffle}};
  if (options.shuffle) identity["seed"] = options.seed;
  return identity;
}

}  // namespace

struct RowLoader::Impl {
  // What a lane has ready: a row and where the lane stands behind it, or its end, or what went wrong.
  struct Item {
    std::vector<int32_t> ids;
    LanePosition after;
    bool end = false;
    std::exception_ptr error;
  };
  struct Lane {
    std::optional<LaneStream> stream;  // empty: another rank's
    std::deque<Item> ready;
    bool busy = false;   // a worker is at it
    bool ended = false;  // nothing more will come
    // The consumer's side.
    bool finished = false;
    std::optional<LanePosition> position;
  };

  Impl(std::shared_ptr<const Corpus> source, DataOptions wanted, Encoder tokenizer, const Json* saved)
      : corpus(std::move(source)),
        options(std::move(wanted)),
        encoder(std::move(tokenizer)),
        order(static_cast<int64_t>(corpus->units().size()), options.lanes, options.shuffle, options.seed),
        bad(options.on_bad_data),
        identity(identity_of(*corpus, options, encoder)) {
    check(options);
    check_separator(options, encoder);
    check_ranks(options, order, corpus->units().size());
    LoaderPosition start;
    if (saved != nullptr) {
      start = position_from_json(*saved, identity, order.lanes(), order.stride());
    } else {
      check_one_row();
      for (int64_t lane = 0; lane < order.lanes(); ++lane) start.lanes.emplace_back(LanePosition{.slot = lane});
    }
    rows = start.rows;
    turn = committed_turn = start.turn;
    lanes.resize(static_cast<size_t>(order.lanes()));
    for (size_t i = 0; i < lanes.size(); ++i) {
      if (!is_ours(static_cast<int64_t>(i))) continue;
      if (!start.lanes[i]) {
        throw failure("the saved data position is that of one rank and lacks lanes that are needed here",
                      "merge the positions of all ranks");
      }
      lanes[i].position = start.lanes[i];
      lanes[i].stream.emplace(shared(order, bad, options), *start.lanes[i]);
    }
  }

  // Apart from the constructor: if a thread cannot be started, the destructor ends the others.
  void start_workers() {
    if (options.prefetch == 0) return;
    for (int i = 0; i < options.workers; ++i) threads.emplace_back([this] { work(); });
  }

  ~Impl() {
    {
      const std::lock_guard lock(mutex);
      stop = true;
    }
    room.notify_all();
    for (std::thread& thread : threads) thread.join();
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  LaneStream::Shared shared(const UnitOrder& units, BadData& sink, const DataOptions& how) {
    return {*corpus, how, encoder, units, sink, stop};
  }

  // Whether this rank hands out rows of a lane. The j-th row from here is rank j mod world's, from lane (turn + j) mod
  // lanes; with `epochs` lanes drop out of the turn, and when they do can only be known by reading them all.
  [[nodiscard]] bool is_ours(int64_t lane) const {
    if (options.epochs > 0) return true;
    const int64_t common = std::gcd(order.lanes(), options.world);
    return (lane - turn - options.rank) % common == 0;
  }

  // Reads the source in order until one row is full.
  void check_one_row() {
    DataOptions once = options;
    once.epochs = 1;
    const UnitOrder straight(static_cast<int64_t>(corpus->units().size()), 1, false, 0);
    BadData quiet(options.on_bad_data, true);
    LaneStream stream(shared(straight, quiet, once), LanePosition{});
    std::vector<int32_t> row(static_cast<size_t>(options.seq_len) + 1);
    if (stream.fill(row) == LaneStream::Status::row) return;
    throw usage_error(fmt::format("{} has {} tokens to train on in {} documents, less than one row of {}",
                                  options.source, with_commas(stream.left_over()), with_commas(corpus->documents()),
                                  with_commas(options.seq_len + 1)),
                      stream.left_over() >= 2
                          ? fmt::format("add text, or set train.seq_len to {} or less", stream.left_over() - 1)
                          : "add text");
  }

  Item produce(LaneStream& stream) const {
    Item item;
    item.ids.resize(static_cast<size_t>(options.seq_len) + 1);
    try {
      item.end = stream.fill(item.ids) != LaneStream::Status::row;
      item.after = stream.position();
    } catch (...) {
      item.error = std::current_exception();
    }
    return item;
  }

  // A worker serves the lane that runs dry first: the one with the fewest rows ready, the next in turn among equals.
  // Which lane is served when changes nothing but what is ready.
  Lane* lane_to_serve() {
    Lane* best = nullptr;
    for (size_t k = 0; k < lanes.size(); ++k) {
      Lane& lane = lanes[(static_cast<size_t>(turn) + k) % lanes.size()];
      if (!lane.stream || lane.busy || lane.ended || std::ssize(lane.ready) >= options.prefetch) continue;
      if (best == nullptr || lane.ready.size() < best->ready.size()) best = &lane;
    }
    return best;
  }

  void work() {
    std::unique_lock lock(mutex);
    while (!stop) {
      Lane* lane = lane_to_serve();
      if (lane == nullptr) {
        room.wait(lock);
        continue;
      }
      lane->busy = true;
      lock.unlock();
      Item item = produce(*lane->stream);
      lock.lock();
      lane->busy = false;
      lane->ended = item.end || item.error;
      lane->ready.push_back(std::move(item));
      ready.notify_one();
    }
  }

  Item take(Lane& lane) {
    if (options.prefetch == 0) return produce(*lane.stream);
    std::unique_lock lock(mutex);
    ready.wait(lock, [&] { return !lane.ready.empty(); });
    Item item = std::move(lane.ready.front());
    lane.ready.pop_front();
    lock.unlock();
    room.notify_one();
    return item;
  }

  // The turn is read by workers too.
  void pass_turn() {
    const std::lock_guard lock(mutex);
    turn = (turn + 1) % order.lanes();
  }

  // The next global row; false when all lanes have ended. An item without ids stands for a row of another rank's lane.
  bool next_global(Item& item, size_t& lane_index) {
    for (int64_t tried = 0; tried < order.lanes(); ++tried) {
      lane_index = static_cast<size_t>(turn);
      Lane& lane = lanes[lane_index];
      if (lane.finished) {
        pass_turn();
        continue;
      }
      if (!lane.stream) {
        item = {};
        pass_turn();
        return true;
      }
      item = take(lane);
      if (item.error) {
        error = item.error;
        std::rethrow_exception(error);
      }
      pass_turn();
      if (!item.end) return true;
      lane.finished = true;
    }
    return false;
  }

  bool next(std::span<int32_t> row) {
    if (error) std::rethrow_exception(error);
    if (ended) return false;
    if (std::ssize(row) != options.seq_len + 1) {
      throw failure(fmt::format("a row has {} ids, not {}", options.seq_len + 1, row.size()));
    }
    const auto begin = std::chrono::steady_clock::now();
    std::vector<std::pair<size_t, LanePosition>> passed;
    for (int64_t j = 0; j < options.world; ++j) {
      Item item;
      size_t lane = 0;
      if (!next_global(item, lane)) {
        ended = true;
        if (rows == 0) throw_no_rows();
        return false;
      }
      if (lanes[lane].stream) passed.emplace_back(lane, item.after);
      if (j == options.rank) std::copy(item.ids.begin(), item.ids.end(), row.begin());
    }
    for (const auto& [lane, after] : passed) lanes[lane].position = after;
    rows += options.world;
    committed_turn = turn;
    waited += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return true;
  }

  void throw_no_rows() {
    error = std::make_exception_ptr(
        usage_error(fmt::format("{} gives no row of {} ids for each of {} ranks: its text is spread over {} lanes",
                                options.source, with_commas(options.seq_len + 1), options.world, order.lanes()),
                    "lower data.lanes or train.seq_len, raise data.epochs, or add text"));
    std::rethrow_exception(error);
  }

  std::shared_ptr<const Corpus> corpus;
  DataOptions options;
  Encoder encoder;
  UnitOrder order;
  BadData bad;
  Json identity;
  std::atomic<bool> stop{false};

  std::mutex mutex;               // guards what workers and next() share: ready, busy, ended, turn, stop
  std::condition_variable room;   // a worker may go on
  std::condition_variable ready;  // a row is there
  std::vector<Lane> lanes;
  int64_t turn = 0;

  int64_t committed_turn = 0;
  int64_t rows = 0;
  bool ended = false;
  std::exception_ptr error;
  double waited = 0;
  std::vector<std::thread> threads;
};

RowLoader::RowLoader(std::shared_ptr<const Corpus> corpus, DataOptions options, Encoder encoder, const Json* position)
    : impl_(std::make_unique<Impl>(std::move(corpus), std::move(options), std::move(encoder), position)) {
  impl_->start_workers();
}

RowLoader::RowLoader(DataOptions options, Encoder encoder, const Json* position)
    : RowLoader((check(options), std::make_shared<const Corpus>(options)), options, std::move(encoder), position) {}

RowLoader::~RowLoader() = default;

bool RowLoader::next(std::span<int32_t> row) { return impl_->next(row); }

Json RowLoader::position() const {
  LoaderPosition position{impl_->rows, impl_->committed_turn, {}};
  for (const Impl::Lane& lane : impl_->lanes) position.lanes.push_back(lane.position);
  return to_json(position, impl_->identity, impl_->order.stride());
}

int64_t RowLoader::rows() const { return impl_->rows; }

DataTotals RowLoader::totals() const {
  DataTotals totals;
  for (const Impl::Lane& lane : impl_->lanes) {
    if (lane.position) totals += lane.position->totals;
  }
  return totals;
}

int64_t RowLoader::epoch() const {
  int64_t epoch = INT64_MAX;
  for (const Impl::Lane& lane : impl_->lanes) {
    if (lane.position) epoch = std::min(epoch, impl_->order.epoch_of(lane.position->slot));
  }
  return epoch;
}

int64_t RowLoader::lanes() const { return impl_->order.lanes(); }

double RowLoader::seconds_waited() const { return impl_->waited; }

}  // namespace mythos
