// SPDX-License-Identifier: Apache-2.0
// Runs kernels of sdk/cuda on the CPU, for tests: what launch.h takes from CUDA elsewhere. Blocks run one after the
// other; the threads of a block are fibers that change at barriers, in an order that a test can reverse (a kernel that
// lacks a barrier gives other results then). Device memory is host memory. Work on a caller's stream is done when
// launch() returns; that on a stream made here waits until somebody waits for it, or for a throw of the dice (see
// emulated_streams.h). Shared memory starts as NaN. A thread that misses a barrier which others wait at ends the
// program.
#pragma once

#include <kvplug/sdk/host.h>
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "emulated_streams.h"

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

#define KVP_KERNEL
#define KVP_DEVICE_CODE inline

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  dim3() = default;
  explicit dim3(unsigned x_, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

namespace kvplug::sdk::cuda {

class Emulator {
 public:
  static Emulator& get() {
    static thread_local Emulator emulator;
    return emulator;
  }

  dim3 grid, block;      // sizes
  dim3 at, thread;       // of the thread that runs
  bool reverse = false;  // threads in falling order between barriers
  int64_t launches = 0;

  float* shared() { return shared_.data(); }

  void run(dim3 blocks, unsigned threads, size_t shared_bytes, const std::function<void()>& body) {
    ++launches;
    grid = blocks;
    block = dim3(threads);
    body_ = &body;
    while (fibers_.size() < threads) fibers_.push_back(std::make_unique<Fiber>());
    for (unsigned z = 0; z < blocks.z; ++z) {
      for (unsigned y = 0; y < blocks.y; ++y) {
        for (unsigned x = 0; x < blocks.x; ++x) {
          at = dim3(x, y, z);
          shared_.assign(shared_bytes / sizeof(float) + 1, NAN);
          run_block(threads);
        }
      }
    }
  }

  void barrier() {
    current_->waits = true;
    leave();
  }

 private:
  static constexpr size_t kStack = 64 << 10;
  struct Fiber {
    ucontext_t context{};
    std::unique_ptr<char[]> stack{new char[kStack]};
    bool waits = false, done = false;
#if defined(__SANITIZE_THREAD__)
    void* tsan = __tsan_create_fiber(0);
    ~Fiber() { __tsan_destroy_fiber(tsan); }
#endif
  };

  static void enter() {
    Emulator& self = get();
    (*self.body_)();
    self.current_->done = true;
    self.leave();
  }

  void leave() {
    Fiber* const from = current_;
#if defined(__SANITIZE_THREAD__)
    __tsan_switch_to_fiber(main_tsan_, 0);
#endif
    swapcontext(&from->context, &main_);
  }

  // Alone: compilers believe that getcontext returns twice, and fear for the variables of a loop around it.
  __attribute__((noinline)) static void prepare(Fiber& fiber) {
    fiber.waits = fiber.done = false;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStack;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, &Emulator::enter, 0);
  }

  void run_block(unsigned threads) {
    for (unsigned i = 0; i < threads; ++i) prepare(*fibers_[i]);
    // From barrier to barrier.
    for (unsigned done = 0; done < threads;) {
      unsigned waiting = 0;
      done = 0;
      for (unsigned n = 0; n < threads; ++n) {
        const unsigned i = reverse ? threads - 1 - n : n;
        Fiber& fiber = *fibers_[i];
        if (!fiber.done) {
          fiber.waits = false;
          current_ = &fiber;
          thread = dim3(i, 0, 0);
#if defined(__SANITIZE_THREAD__)
          main_tsan_ = __tsan_get_current_fiber();
          __tsan_switch_to_fiber(fiber.tsan, 0);
#endif
          swapcontext(&main_, &fiber.context);
        }
        waiting += fiber.waits ? 1 : 0;
        done += fiber.done ? 1 : 0;
      }
      if (waiting > 0 && done > 0) {
        std::fputs("emulator: some threads of a block wait at a barrier that others have left out\n", stderr);
        std::abort();
      }
    }
  }

  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<float> shared_;
  const std::function<void()>* body_ = nullptr;
  Fiber* current_ = nullptr;
  ucontext_t main_{};
#if defined(__SANITIZE_THREAD__)
  void* main_tsan_ = nullptr;
#endif
};

#define blockIdx (::kvplug::sdk::cuda::Emulator::get().at)
#define threadIdx (::kvplug::sdk::cuda::Emulator::get().thread)
#define gridDim (::kvplug::sdk::cuda::Emulator::get().grid)
#define __syncthreads() ::kvplug::sdk::cuda::Emulator::get().barrier()

inline float* shared_memory() { return Emulator::get().shared(); }

struct F32 {
  using Bits = float;
  static float load(Bits x) { return x; }
  static Bits store(float x) { return x; }
};
struct BF16 {
  using Bits = uint16_t;
  static float load(Bits x) {
    const uint32_t wide = uint32_t{x} << 16;
    float out;
    std::memcpy(&out, &wide, sizeof out);
    return out;
  }
  static Bits store(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    if (x != x) return 0x7fff;
    return static_cast<Bits>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  }
};
struct F16 {
  using Bits = uint16_t;
  static float load(Bits x) {
    const int exponent = (x >> 10) & 31, mantissa = x & 1023;
    const float sign = (x & 0x8000) != 0 ? -1.0f : 1.0f;
    if (exponent == 31) return mantissa != 0 ? NAN : sign * INFINITY;
    return sign * (exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                                 : std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25));
  }
  static Bits store(float x) {
    const Bits sign = std::signbit(x) ? 0x8000 : 0;
    if (x != x) return 0x7fff;
    const float size = std::fabs(x);
    if (size == 0.0f) return sign;
    if (size >= 65520.0f) return static_cast<Bits>(sign | 0x7c00);
    int exponent = 0;
    std::frexp(size, &exponent);                            // size = f * 2^exponent, f in [0.5, 1)
    const int scale = exponent < -13 ? 24 : 11 - exponent;  // to an integer of the format's precision
    const auto whole = static_cast<int>(std::nearbyint(std::ldexp(size, scale)));
    if (exponent < -13) return static_cast<Bits>(sign | whole);
    return static_cast<Bits>(sign | (((exponent + 13) << 10) + whole));
  }
};

struct Current {
  explicit Current(int) {}
  ~Current() {}
};

// Device memory as kernels and copies see it: open, where the host of a test keeps it out of reach (guarded_memory.h).
class DeviceSide {
 public:
  DeviceSide() : set_(setter()), before_(set_ != nullptr && set_(true)) {}
  ~DeviceSide() {
    if (set_ != nullptr) set_(before_);
  }
  DeviceSide(const DeviceSide&) = delete;

 private:
  using Set = bool (*)(bool);
  static Set setter() {
    const kvp_host* h = host();
    if (h == nullptr || h->get_extension == nullptr) return nullptr;
    static const auto* const found = static_cast<const Set*>(h->get_extension(h->ctx, "kvp.test-device-memory"));
    return found == nullptr ? nullptr : *found;
  }
  const Set set_;
  const bool before_;
};

template <class... Params, class... Args>
int launch(void (*kernel)(Params...), dim3 grid, unsigned threads, size_t shared_bytes, void*, Args... args) {
  const DeviceSide side;
  Emulator::get().run(grid, threads, shared_bytes, [&] { kernel(args...); });
  return 0;
}
inline int upload_bytes(void*, void* to, const void* from, size_t bytes) {
  const DeviceSide side;
  std::memcpy(to, from, bytes);
  return 0;
}
inline int copy_bytes(void*, void* to, const void* from, size_t bytes, size_t pitch, size_t rows) {
  const DeviceSide side;
  for (size_t i = 0; i < rows; ++i) {
    std::memcpy(static_cast<char*>(to) + i * pitch, static_cast<const char*>(from) + i * pitch, bytes);
  }
  return 0;
}
inline int move_bytes(void* stream, void* to, const void* from, size_t bytes) {
  Streams::get().queue(stream, [=] {
    const DeviceSide side;
    std::memcpy(to, from, bytes);
  });
  return 0;
}
inline int clear_bytes(void* stream, void* to, size_t bytes) {
  Streams::get().queue(stream, [=] {
    const DeviceSide side;
    std::memset(to, 0, bytes);
  });
  return 0;
}
inline int stream_create(void** out) {
  *out = Streams::get().make_stream();
  return 0;
}
inline void stream_destroy(void* stream) { Streams::get().drop_stream(stream); }
inline int stream_synchronize(void* stream) {
  Streams::get().synchronize(stream);
  return 0;
}
inline int event_create(void** out) {
  *out = new Streams::Event();
  return 0;
}
inline void event_destroy(void* event) { delete static_cast<Streams::Event*>(event); }
inline int event_record(void* stream, void* event) {
  Streams::get().record(stream, static_cast<Streams::Event*>(event));
  return 0;
}
inline int event_wait(void* stream, void* event) {
  Streams::get().wait(stream, *static_cast<const Streams::Event*>(event));
  return 0;
}
inline const char* error_name(int) { return "an error of the emulator"; }

}  // namespace kvplug::sdk::cuda
