// Threads that share the blocks of a kernel's work.
#pragma once

#include <immintrin.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>

#include "product.h"

namespace {  // of every library its own

// A piece of work that several threads do together; `helper` tells them from the caller.
struct Task {
  void (*run)(void* of, bool helper);
  void* of;
};

// Threads that help the calling one. They look out for work a while before they sleep: waking a
// sleeping core takes longer than many a kernel, and an update calls kernels one after the other.
class Team {
 public:
  explicit Team(int helpers) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the threads of the program
    try {
      for (int i = 0; i < helpers; ++i) std::thread([this] { Help(); }).detach();
    } catch (const std::system_error&) {  // the system grants no more: fewer helpers
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  // Runs `task` here and on every helper that comes in time; all have left it when this returns.
  void Run(const Task& task) noexcept {
    std::unique_lock<std::mutex> mine(owner_, std::try_to_lock);
    if (!mine.owns_lock()) return task.run(task.of, false);  // they help another thread
    task_ = task;
    rounding_ = _mm_getcsr();
    gate_.store(0);
    number_.fetch_add(1);
    if (asleep_.load() > 0) {
      std::lock_guard<std::mutex> lock(mutex_);
      wake_.notify_all();
    }
    task.run(task.of, false);
    gate_.fetch_or(kShut);
    for (int i = 1; gate_.load() != kShut; ++i)
      if (i % 1024 == 0)
        sched_yield();  // a helper at work may be waiting for this core
      else
        _mm_pause();
  }

 private:
  static constexpr uint32_t kShut = 1u << 31;
  static constexpr std::chrono::microseconds kLookout{2000};

  void Help() noexcept {
    for (uint64_t seen = 0;;) {
      const auto until = std::chrono::steady_clock::now() + kLookout;
      for (int i = 1; number_.load() == seen; ++i) {
        _mm_pause();
        if (i % 64 == 0 && std::chrono::steady_clock::now() > until) Sleep(seen);
      }
      seen = number_.load();
      // Who comes late may find the gate shut, or open for a later task, which is as good.
      uint32_t inside = gate_.load();
      while (!(inside & kShut) && !gate_.compare_exchange_weak(inside, inside + 1)) continue;
      if (inside & kShut) continue;
      _mm_setcsr(rounding_);  // as XLA has set it for the caller: bits must not depend on who works
      task_.run(task_.of, true);
      gate_.fetch_sub(1);
    }
  }

  void Sleep(uint64_t seen) {
    std::unique_lock<std::mutex> lock(mutex_);
    asleep_.fetch_add(1);
    wake_.wait(lock, [&] { return number_.load() != seen; });
    asleep_.fetch_sub(1);
  }

  std::mutex owner_, mutex_;
  std::condition_variable wake_;
  std::atomic<int> asleep_{0};
  Task task_{};
  unsigned rounding_ = 0;
  alignas(64) std::atomic<uint64_t> number_{0};      // of the last task; helpers look at it
  alignas(64) std::atomic<uint32_t> gate_{kShut};  // kShut, or the number of helpers at work
};

int threads = 1;  // the caller and its helpers

inline Team& TheTeam() {
  static Team* team = new Team(threads - 1);  // never destroyed, because its threads never end
  return *team;
}

// Blocks are claimed one by one: by the caller from the first on, by helpers from the last on. So
// one core packs and uses the first network of an ensemble, the other one the last.
template <typename Run>
void ForBlocks(size_t blocks, const Run& run) {
  std::atomic<uint64_t> claimed{0};  // from the front, and from the back in the upper half
  const auto work = [&](bool helper) {
    const auto claim = [&](size_t& block) {
      const uint64_t before = claimed.fetch_add(helper ? uint64_t{1} << 32 : 1);
      const size_t front = before & 0xffffffff, back = before >> 32;
      block = helper ? blocks - 1 - back : front;
      return front + back < blocks;
    };
    size_t block;
    if (!claim(block)) return;
    const Units units;
    do run(block);
    while (claim(block));
  };
  if (blocks < 2) return work(false);
  using Own = decltype(work);
  const auto call = [](void* of, bool helper) { (*static_cast<Own*>(of))(helper); };
  TheTeam().Run({call, const_cast<void*>(static_cast<const void*>(&work))});
}

}  // namespace
