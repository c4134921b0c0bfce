// SPDX-License-Identifier: Apache-2.0
// How much of the transfer `offloaded` hides on a device with a copy engine: K/V lie in pinned host memory, and a layer
// comes on a stream of its own while the one before it computes. One JSON line for each ratio of computing to moving:
//
//   compute_ms  a decode step of `dynamic`, whose K/V stay on the device
//   move_ms     the bytes that `offloaded` moves in a step, at the rate of copies alone, in pieces of the same size
//   step_ms     a decode step of `offloaded`
//   hidden      (compute + move - step) / the smaller of compute and move: 1 = all of it, 0 = nothing
//
// More computing is more attention over the same K/V: calls without new tokens, which move nothing. The first line is
// the plain step, the others have as many calls as bring computing to half, once and twice the move.
//
//   offload_device_bench [tokens [rounds]]   tokens in the cache, a multiple of 64, 8192 unless given; rounds, 1 to 20
//
// One layer: 32 query heads, 8 K/V heads, head_dim 128, bfloat16; 8 layers. The sides of a comparison alternate, the
// minimum of each counts. Bytes, counters and answers are checked. Where there is no device, it says so and ends well.
// The tests build this with the emulator as its device: all of it but the times.
#include <kvplug/sdk/device.h>

#include <charconv>
#include <cmath>
#include <cstdio>
#include <functional>
#include <string>

#include "loaded_cache.h"
#include "pool.h"

namespace kvplug::test {
namespace {

using bench::seconds;

constexpr int32_t kLayers = 8, kQHeads = 32, kKvHeads = 8, kDim = 128;
constexpr int64_t kPage = 64, kTokenBytes = int64_t{kKvHeads} * kDim * 2 * 2;
constexpr int64_t kMostRounds = 20, kSteps = 3;
static_assert(1 + kMostRounds * kSteps <= kPage, "every step moves as many pages");

[[noreturn]] void stop(const std::string& why) {
  std::fprintf(stderr, "offload_device_bench: %s\n", why.c_str());
  std::exit(1);
}
void expect(const char* what, uint64_t is, uint64_t wanted) {
  if (is != wanted) stop(std::string(what) + ": " + std::to_string(is) + ", expected " + std::to_string(wanted));
}

// Until the device is done.
double timed(const std::function<void()>& work) {
  finish_device();
  const double start = seconds();
  work();
  finish_device();
  return seconds() - start;
}

// K and V of the tokens that are there and of the one that a step adds, for both sides.
struct Inputs {
  explicit Inputs(int64_t tokens) {
    Random random(1);
    for (Values* each : {&k, &v}) fill(*each = make(kBF16, {1, kKvHeads, tokens + kLayers, kDim}), random);
    for (Values* each : {&new_k, &new_v}) fill(*each = make(kBF16, {1, kKvHeads, 1, kDim}), random);
    fill(q, random);
  }
  // Other tokens in every layer, so that one layer in place of another shows.
  static Values of_layer(Values all, int32_t layer) {
    all.t.data = all.at(0, 0, layer);
    all.t.shape[2] -= kLayers;
    return all;
  }
  Values k, v, new_k, new_v, q = make(kBF16, {1, kQHeads, 1, kDim});
};

class Side {
 public:
  Side(const char* library, const Inputs& in, int64_t tokens, uint64_t owner)
      : in_(in),
        out_(make(kBF16, {kLayers, kQHeads, 1, kDim})),
        cache_(static_cast<const kvp_cache_iface*>(load_plugin(library)->descriptor(0)->iface),
               CreateArgs(std::vector<LayerShape>(kLayers, {kQHeads, kKvHeads, kDim, kDim}), kBF16, owner).create) {
    check(cache_.reserve(1, tokens + kPage));
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      check(cache_.update(layer, Inputs::of_layer(in.k, layer), Inputs::of_layer(in.v, layer), nullptr, nullptr,
                          nullptr, nullptr));
    }
    step(1);
  }
  // `calls` of attention in every layer, the first with a new token.
  void step(int64_t calls) {
    kvp_attend_args args{};
    args.struct_size = sizeof args;
    args.flags = KVP_ATTEND_CAUSAL;
    args.q = &in_.q.t;
    args.scale = 0.088f;
    for (args.layer = 0; args.layer < kLayers; ++args.layer) {
      kvp_tensor out = out_.t;
      out.shape[0] = 1;
      out.data = out_.at(args.layer);
      args.k = &in_.new_k.t;
      args.v = &in_.new_v.t;
      for (int64_t i = 0; i < calls; ++i) {
        check(cache_.attend(args, &out, nullptr));
        args.k = args.v = nullptr;
      }
    }
  }
  double time(int64_t calls) {
    return timed([&] {
             for (int64_t i = 0; i < kSteps; ++i) step(calls);
           }) /
           kSteps;
  }
  LoadedCache& cache() { return cache_; }
  const Reachable<std::byte>& answers() const { return *out_.memory; }

 private:
  void check(int32_t status) {
    if (status != KVP_OK) stop(cache_.text());
  }
  const Inputs& in_;
  Values out_;
  LoadedCache cache_;
};

// Copies from pinned host memory to the device, as many as `offloaded` makes in a step.
class Copies {
 public:
  explicit Copies(int64_t bytes)
      : bytes_(static_cast<size_t>(bytes)), from_(take_pinned(bytes_)), to_(take_device(bytes_)) {}
  ~Copies() {
    give_device(to_, bytes_);
    give_pinned(from_);
  }
  Copies(const Copies&) = delete;
  double bytes_per_second() const {
    const double time = timed([&] {
      for (int i = 0; i < kLayers; ++i) {
        if (sdk::cuda_device()->move(0, nullptr, to_, from_, bytes_) != 0) stop("the device refused a copy");
      }
    });
    return kLayers * static_cast<double>(bytes_) / time;
  }

 private:
  const size_t bytes_;
  void *const from_, *const to_;
};

struct Times {
  double compute = 1e9, move = 0;
};

Times bench(const Inputs& in, int64_t tokens, int64_t rounds, int64_t calls) {
  constexpr uint64_t kOwner = 2;
  Side dynamic("dynamic.so", in, tokens, 1), offloaded("offloaded.so", in, tokens, kOwner);
  const Copies copies((tokens + kPage) * kTokenBytes);  // a layer is one piece of pinned memory, as it was reserved
  const auto counts = [&](const char* name) { return offloaded.cache().counter(name); };
  const uint64_t read_before = counts("bytes_read"), written_before = counts("bytes_written"),
                 hits_before = counts("prefetch_hits"), stalls_before = counts("prefetch_stalls");
  double t_compute = 1e9, t_step = 1e9, rate = 0;
  for (int64_t round = 0; round < rounds; ++round) {
    t_compute = std::min(t_compute, dynamic.time(calls));
    t_step = std::min(t_step, offloaded.time(calls));
    rate = std::max(rate, copies.bytes_per_second());
  }
  const auto visits = static_cast<uint64_t>(rounds * kSteps * kLayers);
  const uint64_t read = counts("bytes_read") - read_before, written = counts("bytes_written") - written_before,
                 hits = counts("prefetch_hits") - hits_before;
  const auto layer_bytes = static_cast<uint64_t>((tokens + kPage) * kTokenBytes);
  expect("bytes_read", read, visits * layer_bytes);
  expect("bytes_written", written, visits * kPage * kTokenBytes);
  expect("prefetch_hits", hits, visits);
  expect("prefetch_stalls", counts("prefetch_stalls"), stalls_before);
  const TestHost& host = TestHost::get();
  expect("pinned bytes", host.held(kOwner, KVP_PURPOSE_KV, KVP_TIER_PINNED), kLayers * layer_bytes);
  expect("device bytes", host.held(kOwner, KVP_PURPOSE_KV, KVP_TIER_DEVICE), 2 * layer_bytes);
  if (dynamic.answers() != offloaded.answers()) stop("dynamic and offloaded answer differently");

  const double bytes = static_cast<double>(read + written) / static_cast<double>(rounds * kSteps),
               t_move = bytes / rate;
  std::printf(
      "{\"bench\":\"offload_device\",\"tokens\":%lld,\"layers\":%d,\"calls\":%lld,\"compute_ms\":%.3f,\"move_ms\":%.3f,"
      "\"step_ms\":%.3f,\"hidden\":%.3f,\"compute_over_move\":%.3f,\"moved_bytes\":%.0f,\"copy_gb_s\":%.1f}\n",
      static_cast<long long>(tokens), kLayers, static_cast<long long>(calls), t_compute * 1e3, t_move * 1e3,
      t_step * 1e3, (t_compute + t_move - t_step) / std::min(t_compute, t_move), t_compute / t_move, bytes, rate / 1e9);
  return {t_compute, t_move};
}

// The number in argv[i], or `otherwise` where there is none.
int64_t number(int argc, char** argv, int i, int64_t otherwise) {
  if (i >= argc) return otherwise;
  const std::string_view text = argv[i];
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? value : 0;
}

int run(int argc, char** argv) {
  const int64_t tokens = number(argc, argv, 1, 8192), rounds = number(argc, argv, 2, 10);
  if (argc > 3 || tokens < kPage || tokens % kPage != 0 || rounds < 1 || rounds > kMostRounds) {
    stop("give the tokens in the cache, a multiple of 64, and rounds, 1 to 20; or nothing");
  }
  if (const std::string why = missing_device(); !why.empty()) {
    std::printf("offload_device_bench: nothing measured: %s\n", why.c_str());
    return 0;
  }
  const Inputs in(tokens);
  const Times plain = bench(in, tokens, rounds, 1);
  int64_t calls = 1;
  for (const double share : {0.5, 1.0, 2.0}) {
    calls = std::max(calls + 1, static_cast<int64_t>(std::llround(share * plain.move / plain.compute)));
    bench(in, tokens, rounds, calls);
  }
  return ::testing::Test::HasFailure() ? 1 : 0;  // of what tests/support found wrong
}

}  // namespace
}  // namespace kvplug::test

int main(int argc, char** argv) { return kvplug::test::run(argc, argv); }
