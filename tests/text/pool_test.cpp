#include "text/pool.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>
#include <vector>

namespace mythos {
namespace {

struct Counted {
  static inline std::atomic<int> alive = 0;
  Counted() { ++alive; }
  ~Counted() { --alive; }
  std::atomic<int> users = 0;
};

TEST(Pool, AThreadGetsBackWhatItGave) {
  Pool<Counted> pool;
  EXPECT_EQ(pool.take(), nullptr);
  auto object = std::make_unique<Counted>();
  const Counted* const address = object.get();
  pool.give(std::move(object));
  object = pool.take();
  EXPECT_EQ(object.get(), address);
  EXPECT_EQ(pool.take(), nullptr);
}

TEST(Pool, WhatAnotherThreadGaveIsFound) {
  Pool<Counted> pool;
  std::thread([&] { pool.give(std::make_unique<Counted>()); }).join();
  EXPECT_NE(pool.take(), nullptr);
}

TEST(Pool, KeepsSoManyAndDestroysThem) {
  {
    Pool<Counted> pool;
    for (int i = 0; i < 400; ++i) pool.give(std::make_unique<Counted>());
    EXPECT_EQ(Counted::alive, 256);
    std::set<std::unique_ptr<Counted>> taken;
    while (auto object = pool.take()) taken.insert(std::move(object));
    EXPECT_EQ(taken.size(), 256u);
    for (int i = 0; i < 10; ++i) pool.give(std::make_unique<Counted>());
  }
  EXPECT_EQ(Counted::alive, 0);
}

TEST(Pool, NoObjectHasTwoUsers) {
  Pool<Counted> pool;
  std::atomic<int> shared = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20'000; ++i) {
        auto object = pool.take();
        if (!object) object = std::make_unique<Counted>();
        if (object->users.fetch_add(1) != 0) ++shared;
        --object->users;
        pool.give(std::move(object));
      }
    });
  }
  for (auto& t : threads) t.join();
  EXPECT_EQ(shared, 0);
  EXPECT_LE(Counted::alive, 4);
}

}  // namespace
}  // namespace mythos
