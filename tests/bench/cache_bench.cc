// SPDX-License-Identifier: Apache-2.0
// Caches beside each other, one JSON line a figure:
//   cache_bench static    a decode step of dynamic, static and a concatenating cache at several lengths
//   cache_bench offload   how much of the transfer offloading hides: a tier that sleeps, and a real file (in $TMPDIR)
//   cache_bench sliding   what a window-512 layer holds after 4,096 tokens
//   cache_bench append    what packing adds to an appended token, against one attention step
// One layer: 32 query heads, 8 K/V heads, head_dim 128, bfloat16; 8 layers, so that K/V come from memory and not from a
// cache of the CPU. The sides of a comparison alternate, the minimum of each counts.
#include <dlfcn.h>
#include <kvplug/sdk/attention.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string_view>

#include "offloaded/file_tier.h"
#include "offloaded/offloaded_cache.h"
#include "pool.h"

namespace {

namespace sdk = kvplug::sdk;
using kvplug::bench::Pool;
using kvplug::bench::seconds;

constexpr int32_t kQHeads = 32, kKvHeads = 8, kDim = 128, kLayers = 8, kThreads = 2;
constexpr kvp_dtype kBf16 = {KVP_DTYPE_BFLOAT, 16, 1};
constexpr int64_t kTokenBytes = int64_t{kKvHeads} * kDim * 2 * 2;

[[noreturn]] void stop(const std::string& why) {
  std::fprintf(stderr, "cache_bench: %s\n", why.c_str());
  std::exit(1);
}

kvp_error* error() {
  static char text[512];
  static kvp_error err{sizeof err, 0, 0, text, sizeof text, 0};
  return &err;
}
void check(int32_t status, const char* what) {
  if (status != KVP_OK) stop(std::string(what) + ": " + error()->buf);
}

const kvp_host* host() {
  static Pool pool(kThreads);
  static const kvp_host table = [] {
    kvp_host t{};
    t.struct_size = sizeof t;
    t.abi_major = KVP_ABI_MAJOR;
    t.abi_minor = KVP_ABI_MINOR;
    t.name = "cache_bench";
    t.version = "0";
    t.log = [](void*, int32_t, const char*, const char*, size_t) {};
    t.mem_alloc = [](void*, const kvp_mem* mem, void** out, kvp_error*) -> int32_t {
      *out = mem->bytes == 0 ? nullptr : std::aligned_alloc(64, (mem->bytes + 63) / 64 * 64);
      return mem->bytes != 0 && *out == nullptr ? KVP_OUT_OF_MEMORY : KVP_OK;
    };
    t.mem_free = [](void*, const kvp_mem*, void* data) { std::free(data); };
    t.get_extension = [](void*, const char* id) -> const void* {
      return std::string_view(id) == KVP_EXT_HOST_PARALLEL ? pool.table() : nullptr;
    };
    return t;
  }();
  return &table;
}

const kvp_plugin* load_plugin(const char* file) {
  void* library = dlopen((std::string(KVPLUG_BENCH_PLUGINS "/") + file).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) stop(dlerror());
  const auto entry = reinterpret_cast<kvp_plugin_entry_fn>(dlsym(library, KVP_PLUGIN_ENTRY_NAME));
  const kvp_plugin* plugin = nullptr;
  check(entry(host(), &plugin, error()), file);
  return plugin;
}
const kvp_cache_iface* load(const char* file) {
  return static_cast<const kvp_cache_iface*>(load_plugin(file)->descriptor(0)->iface);
}

// Key and value quantizer of one plugin, with nbits unless that is 0.
struct Quantizers {
  kvp_qhandle key{}, value{};
  Quantizers(const char* name, int64_t nbits) {
    const kvp_plugin* plugin = load_plugin((std::string(name) + ".so").c_str());
    const auto* iface = static_cast<const kvp_quantizer_iface*>(plugin->descriptor(0)->iface);
    kvp_option option{};
    option.key = "nbits";
    option.type = KVP_OPTION_INTEGER;
    option.integer = nbits;
    for (kvp_qhandle* to : {&key, &value}) {
      kvp_qcreate create{};
      create.struct_size = sizeof create;
      create.role = to == &key ? KVP_ROLE_KEY : KVP_ROLE_VALUE;
      create.head_dim = kDim;
      create.options = &option;
      create.n_options = nbits == 0 ? 0 : 1;
      create.dtype = kBf16;
      create.device_type = KVP_DEVICE_CPU;
      *to = {sizeof *to, iface, nullptr, name};
      check(iface->create(&create, &to->self, error()), name);
    }
  }
  Quantizers(const Quantizers&) = delete;
  Quantizers& operator=(const Quantizers&) = delete;
  ~Quantizers() {
    for (const kvp_qhandle& each : {key, value}) each.iface->destroy(each.self);
  }
};

// The data of one call: [1, heads, tokens, dim] inside a row-major buffer that all calls share.
struct Inputs {
  explicit Inputs(int64_t tokens) : q(make(tokens, kQHeads)), k(make(tokens, kKvHeads)), v(k), out(q) {}
  static std::vector<uint16_t> make(int64_t tokens, int64_t heads) {
    std::vector<uint16_t> values(static_cast<size_t>(tokens * heads * kDim));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<uint16_t>(0x3c00 + i * 7919 % 256);
    return values;
  }
  static kvp_tensor tensor(std::vector<uint16_t>& data, int64_t heads, int64_t tokens) {
    kvp_tensor t{};
    t.data = data.data();
    t.device_type = KVP_DEVICE_CPU;
    t.ndim = 4;
    t.dtype_code = kBf16.code;
    t.dtype_bits = kBf16.bits;
    t.dtype_lanes = 1;
    const int64_t shape[4] = {1, heads, tokens, kDim}, strides[4] = {heads * tokens * kDim, kDim, heads * kDim, 1};
    std::memcpy(t.shape, shape, sizeof shape);
    std::memcpy(t.strides, strides, sizeof strides);
    return t;
  }
  std::vector<uint16_t> q, k, v, out;
};

class Cache {
 public:
  Cache(const kvp_cache_iface* iface, int64_t capacity, int32_t kind = KVP_LAYER_FULL, int64_t window = 0,
        const char* disk_path = nullptr, const Quantizers* quantizers = nullptr)
      : iface_(iface), attend_(static_cast<const kvp_attend_ext*>(iface->get_extension(KVP_EXT_ATTEND))) {
    std::vector<kvp_layer> layers(kLayers);
    for (kvp_layer& layer : layers) {
      layer.struct_size = sizeof layer;
      layer.kind = kind;
      layer.q_heads = kQHeads;
      layer.kv_heads = kKvHeads;
      layer.key_dim = layer.value_dim = kDim;
      layer.window = window;
    }
    kvp_option option{};
    option.key = "disk_path";
    option.type = KVP_OPTION_TEXT;
    option.text = disk_path;
    kvp_cache_create create{};
    create.struct_size = sizeof create;
    create.layers = layers.data();
    create.n_layers = layers.size();
    create.layer_stride = sizeof(kvp_layer);
    create.batch = 1;
    create.tokens = capacity;
    create.device_type = KVP_DEVICE_CPU;
    create.dtype = kBf16;
    create.options = &option;
    create.n_options = disk_path == nullptr ? 0 : 1;
    if (quantizers != nullptr) create.quantizer_key = &quantizers->key, create.quantizer_value = &quantizers->value;
    check(iface_->create(&create, &self_, error()), "create");
    check(iface_->reserve(self_, &call_, 1, capacity, error()), "reserve");
  }
  ~Cache() { iface_->destroy(self_); }
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  void step(Inputs& in, int64_t tokens) {
    kvp_tensor q = Inputs::tensor(in.q, kQHeads, tokens), k = Inputs::tensor(in.k, kKvHeads, tokens),
               v = Inputs::tensor(in.v, kKvHeads, tokens), out = Inputs::tensor(in.out, kQHeads, tokens);
    kvp_attend_args args{};
    args.struct_size = sizeof args;
    args.flags = KVP_ATTEND_CAUSAL;
    args.q = &q;
    args.k = &k;
    args.v = &v;
    args.scale = 0.088F;
    for (args.layer = 0; args.layer < kLayers; ++args.layer) {
      check(attend_->attend(self_, &call_, &args, &out, nullptr, error()), "attend");
    }
  }
  // Appends without attending.
  void fill(int64_t tokens) {
    Inputs in(tokens);
    append(in, tokens);
  }
  void append(Inputs& in, int64_t tokens) {
    kvp_tensor k = Inputs::tensor(in.k, kKvHeads, tokens), v = Inputs::tensor(in.v, kKvHeads, tokens);
    kvp_update_args args{};
    args.struct_size = sizeof args;
    args.k = &k;
    args.v = &v;
    for (args.layer = 0; args.layer < kLayers; ++args.layer) {
      check(iface_->update(self_, &call_, &args, nullptr, nullptr, error()), "update");
    }
  }
  void crop(int64_t n) { check(iface_->crop(self_, &call_, &n, 1, error()), "crop"); }
  kvp_memory memory() {
    kvp_memory out{};
    out.struct_size = sizeof out;
    check(iface_->memory(self_, -1, &out, error()), "memory");
    return out;
  }
  uint64_t counter(std::string_view name) {
    kvp_counter all[16];
    size_t n = 16;
    iface_->counters(self_, all, &n);
    for (size_t i = 0; i < n; ++i) {
      if (name == all[i].name) return all[i].value;
    }
    stop("no counter " + std::string(name));
  }

 private:
  const kvp_cache_iface* iface_;
  const kvp_attend_ext* attend_;
  kvp_cache* self_ = nullptr;
  kvp_call call_{sizeof(kvp_call), KVP_DEVICE_CPU, 0, nullptr, 0, 0};
};

// Grows as Transformers' DynamicLayer does: a new tensor [heads, tokens + 1, dim] with a copy of all that was there.
// Attention over it is our own, so that the growing alone is compared.
class Concatenating {
 public:
  explicit Concatenating(int64_t tokens) : tokens_(tokens) {
    for (Layer& layer : layers_) {
      for (auto& side : layer) side.assign(static_cast<size_t>(kKvHeads * tokens * kDim), 0x3c00);
    }
    const sdk::AttendShape shape = {1, kQHeads, kKvHeads, 1, kDim, kDim, kBf16};
    scratch_.resize(sdk::attend_scratch_bytes(shape, kThreads) + 64);
  }
  void step(Inputs& in) {
    for (Layer& layer : layers_) {
      layer[0] = longer(layer[0], in.k);
      layer[1] = longer(layer[1], in.v);
      attend(layer, in);
    }
    ++tokens_;
  }

 private:
  using Side = std::vector<uint16_t>;
  using Layer = Side[2];

  Side longer(const Side& old, const Side& added) const {
    Side all;
    all.reserve(static_cast<size_t>(kKvHeads * (tokens_ + 1) * kDim));  // one pass over the new memory, as torch.cat
    for (int64_t h = 0; h < kKvHeads; ++h) {
      all.insert(all.end(), old.begin() + h * tokens_ * kDim, old.begin() + (h + 1) * tokens_ * kDim);
      all.insert(all.end(), added.begin() + h * kDim, added.begin() + (h + 1) * kDim);
    }
    return all;
  }
  void attend(Layer& layer, Inputs& in) {
    const int64_t n = tokens_ + 1;
    std::vector<sdk::KvBlock> blocks;
    for (int64_t t = 0; t < n; t += sdk::kBlockTokens) {
      blocks.push_back({layer[0].data() + t * kDim, layer[1].data() + t * kDim, n * kDim, kDim, n * kDim, kDim});
    }
    const kvp_tensor q = Inputs::tensor(in.q, kQHeads, 1);
    kvp_tensor out = Inputs::tensor(in.out, kQHeads, 1);
    const sdk::AttendRow row = {blocks.data(), 0, 0, n, n - 1, 1, 0};
    const sdk::AttendCall call = {&q, &out, nullptr, nullptr, nullptr, &row, 0, 0, 0.088F, 0, true};
    const auto* parallel = static_cast<const kvp_host_parallel*>(host()->get_extension(nullptr, KVP_EXT_HOST_PARALLEL));
    void* aligned = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(scratch_.data()) + 63) / 64 * 64);
    check(sdk::attend({1, kQHeads, kKvHeads, 1, kDim, kDim, kBf16}, call, parallel, aligned, scratch_.size() - 64),
          "attend");
  }

  int64_t tokens_;
  Layer layers_[kLayers];
  std::vector<std::byte> scratch_;
};

double least(const std::function<void()>& work, int times) {
  double best = 1e9;
  for (int i = 0; i < times; ++i) {
    const double start = seconds();
    work();
    best = std::min(best, seconds() - start);
  }
  return best;
}

void bench_static() {
  const kvp_cache_iface *dynamic = load("dynamic.so"), *fixed = load("static.so");
  constexpr int64_t kCapacity = 8256;
  for (const int64_t tokens : {512, 2048, 8192}) {
    Cache grows(dynamic, kCapacity), ahead(fixed, kCapacity);
    Concatenating concatenates(tokens);
    grows.fill(tokens);
    ahead.fill(tokens);
    Inputs in(1);
    double t_grows = 1e9, t_ahead = 1e9, t_concatenates = 1e9;
    for (int round = 0; round < 8; ++round) {
      t_grows = std::min(t_grows, least([&] { grows.step(in, 1); }, 2));
      t_ahead = std::min(t_ahead, least([&] { ahead.step(in, 1); }, 2));
      t_concatenates = std::min(t_concatenates, least([&] { concatenates.step(in); }, 1));
    }
    std::printf(
        "{\"bench\":\"static\",\"tokens\":%lld,\"capacity\":%lld,\"layers\":%d,\"dynamic_ms\":%.3f,\"static_ms\":%.3f,"
        "\"concatenating_ms\":%.3f,\"static_over_dynamic\":%.3f,\"static_over_concatenating\":%.2f,\"gb_s\":%.1f}\n",
        static_cast<long long>(tokens), static_cast<long long>(kCapacity), kLayers, t_grows * 1e3, t_ahead * 1e3,
        t_concatenates * 1e3, t_grows / t_ahead, t_concatenates / t_ahead,
        static_cast<double>(tokens * kTokenBytes * kLayers) / t_ahead / 1e9);
  }
}

// Sleeps as long as the bytes would take, and moves nothing.
double tier_bytes_per_second = 0;
class SleepingTier final : public kvplug::offloaded::Tier {
 public:
  void grow(size_t, int64_t) override {}
  void read(size_t, int64_t, int64_t bytes, std::byte*) override { sleep(bytes); }
  void write(size_t, int64_t, int64_t bytes, const std::byte*) override { sleep(bytes); }

 private:
  static void sleep(int64_t bytes) {
    if (tier_bytes_per_second == 0) return;
    std::this_thread::sleep_for(std::chrono::duration<double>(static_cast<double>(bytes) / tier_bytes_per_second));
  }
};

namespace offloaded = kvplug::offloaded;
constexpr offloaded::Choice kSleeping{
    "sleeping", false, false,
    [](const std::string&, size_t) -> std::unique_ptr<offloaded::Tier> { return std::make_unique<SleepingTier>(); }};
constexpr offloaded::Choice kFile{"file", false, false,
                                  [](const std::string& path, size_t layers) -> std::unique_ptr<offloaded::Tier> {
                                    return std::make_unique<offloaded::FileTier>(path, layers);
                                  }};

void bench_offload() {
  sdk::detail::host.store(host());
  const kvp_cache_iface* sleeping = sdk::CachePlugin<offloaded::OffloadedCache<kSleeping>>::iface();
  const kvp_cache_iface* file = sdk::CachePlugin<offloaded::OffloadedCache<kFile>>::iface();
  const std::string folder = std::filesystem::temp_directory_path();
  constexpr int64_t kTokens = 8192, kCapacity = 8256;
  constexpr int kSteps = 6;
  Inputs in(1);
  const auto steps = [&](Cache& cache) {
    cache.step(in, 1);
    const uint64_t before = cache.counter("bytes_read") + cache.counter("bytes_written");
    const double time = least([&] { cache.step(in, 1); }, kSteps);
    const uint64_t moved = cache.counter("bytes_read") + cache.counter("bytes_written") - before;
    return std::pair(time, static_cast<double>(moved) / kSteps);
  };
  tier_bytes_per_second = 0;
  Cache free(sleeping, kCapacity, KVP_LAYER_FULL, 0, folder.c_str());
  free.fill(kTokens);
  const double t_compute = steps(free).first;
  for (const double share : {0.5, 0.9, 1.0, 1.5}) {  // time of the transfer against that of computing
    tier_bytes_per_second = 0;
    Cache cache(sleeping, kCapacity, KVP_LAYER_FULL, 0, folder.c_str());
    cache.fill(kTokens);
    tier_bytes_per_second = static_cast<double>(kTokens * kTokenBytes * kLayers) / (share * t_compute);
    const auto [t_step, bytes] = steps(cache);
    const double t_move = bytes / tier_bytes_per_second;
    std::printf(
        "{\"bench\":\"offload\",\"tier\":\"sleeping\",\"compute_ms\":%.2f,\"move_ms\":%.2f,\"step_ms\":%.2f,"
        "\"hidden\":%.3f,\"hits\":%llu,\"stalls\":%llu}\n",
        t_compute * 1e3, t_move * 1e3, t_step * 1e3, (t_compute + t_move - t_step) / std::min(t_compute, t_move),
        static_cast<unsigned long long>(cache.counter("prefetch_hits")),
        static_cast<unsigned long long>(cache.counter("prefetch_stalls")));
  }
  Cache real(file, kCapacity, KVP_LAYER_FULL, 0, folder.c_str());
  real.fill(kTokens);
  const auto [t_step, bytes] = steps(real);
  const kvp_memory memory = real.memory();
  const double resident = static_cast<double>(memory.reserved[KVP_TIER_HOST][KVP_PURPOSE_KV]);
  std::printf(
      "{\"bench\":\"offload\",\"tier\":\"file\",\"compute_ms\":%.2f,\"step_ms\":%.2f,\"moved_gb_s\":%.2f,"
      "\"resident_layers\":%.3f,\"file_bytes\":%llu}\n",
      t_compute * 1e3, t_step * 1e3, bytes / t_step / 1e9,
      resident / static_cast<double>((kTokens + sdk::kBlockTokens) * kTokenBytes),
      static_cast<unsigned long long>(memory.reserved[KVP_TIER_FILE][KVP_PURPOSE_KV]));
}

void bench_sliding() {
  Cache cache(load("dynamic.so"), 1, KVP_LAYER_SLIDING, 512);
  Inputs in(512);
  const double time = least(
      [&] {
        for (int i = 0; i < 8; ++i) cache.step(in, 512);
      },
      1);
  const double held = static_cast<double>(cache.memory().reserved[KVP_TIER_HOST][KVP_PURPOSE_KV]);
  std::printf("{\"bench\":\"sliding\",\"window\":512,\"tokens\":4096,\"held_tokens\":%.1f,\"prefill_ms\":%.1f}\n",
              held / static_cast<double>(kTokenBytes * kLayers), time * 1e3);
}

void bench_append() {
  constexpr int64_t kTokens = 8192, kRound = 64;  // whole blocks, so that every round packs as many
  constexpr int kRounds = 16;
  const kvp_cache_iface *dynamic = load("dynamic.so"), *quantized = load("quantized.so");
  const struct {
    const char* name;
    int64_t nbits;
  } kinds[] = {{"quanto", 8}, {"quanto", 4}, {"hqq", 8}, {"hqq", 4}, {"fp8", 0}};
  Inputs in(1);
  for (const auto& kind : kinds) {
    const Quantizers quantizers(kind.name, kind.nbits);
    Cache plain(dynamic, kTokens), packed(quantized, kTokens, KVP_LAYER_FULL, 0, nullptr, &quantizers);
    const auto round = [&](Cache& cache) {
      return least(
          [&] {
            for (int64_t i = 0; i < kRound; ++i) cache.append(in, 1);
          },
          1);
    };
    double t_plain = 1e9, t_packed = 1e9;
    plain.fill(1024), packed.fill(1024);
    const uint64_t before = packed.counter("packed_tokens");
    for (int i = 0; i < kRounds; ++i) {
      t_plain = std::min(t_plain, round(plain));
      t_packed = std::min(t_packed, round(packed));
    }
    if (packed.counter("packed_tokens") - before != kRounds * kRound * kLayers) stop("not every token was packed");
    packed.fill(kTokens - 1024 - kRounds * kRound);
    const double step = least([&] { packed.step(in, 1); }, 8);
    const double us = 1e6 / kLayers, append = (t_packed - t_plain) / kRound;
    std::printf(
        "{\"bench\":\"append\",\"quantizer\":\"%s\",\"nbits\":%lld,\"dynamic_us\":%.2f,\"quantized_us\":%.2f,"
        "\"step_us\":%.0f,\"packing_of_step\":%.4f}\n",
        kind.name, static_cast<long long>(kind.nbits), t_plain / kRound * us, t_packed / kRound * us, step * us,
        append / step);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view what = argc == 2 ? argv[1] : "";
  if (what == "static") {
    bench_static();
  } else if (what == "offload") {
    bench_offload();
  } else if (what == "sliding") {
    bench_sliding();
  } else if (what == "append") {
    bench_append();
  } else {
    stop("give one of: static, offload, sliding, append");
  }
  return 0;
}
