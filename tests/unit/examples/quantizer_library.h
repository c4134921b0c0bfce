// SPDX-License-Identifier: Apache-2.0
// A quantizer library as a third party's host meets it: opened, introduced, and used through the ABI alone. Nothing
// here knows which quantizer it is; what is asked of all of them is in quantizer_*_test.cc.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <kvplug/abi.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "test_host.h"
#include "values.h"

namespace kvplug::test {

inline const kvp_call kCpuCall{sizeof(kvp_call), KVP_DEVICE_CPU, 0, nullptr, 0, 0};

// The caller's error with room for its text.
struct ErrorText {
  char text[512] = {};
  kvp_error error{sizeof(kvp_error), 0, 0, text, sizeof text, 0};
  operator kvp_error*() { return &error; }
};

inline std::string content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The library of the command line: LIBRARY KIND SCHEMA [key=value ...].
struct QuantizerLibrary {
  std::string path, kind, schema;
  std::vector<std::pair<std::string, std::string>> given;  // options; a value that is no integer is a text
  kvp_plugin_entry_fn entry = nullptr;
  const kvp_descriptor* descriptor = nullptr;
  const kvp_quantizer_iface* iface = nullptr;

  static QuantizerLibrary& get() {
    static QuantizerLibrary library;
    return library;
  }

  // Says what is wrong, or nothing.
  std::string open(int argc, char** argv) {
    path = argv[1], kind = argv[2], schema = content(argv[3]);
    for (int i = 4; i < argc; ++i) {
      const std::string pair = argv[i];
      given.emplace_back(pair.substr(0, pair.find('=')), pair.substr(pair.find('=') + 1));
    }
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return dlerror();
    entry = reinterpret_cast<kvp_plugin_entry_fn>(dlsym(handle, KVP_PLUGIN_ENTRY_NAME));
    const kvp_plugin* plugin = nullptr;
    ErrorText why;
    if (entry == nullptr || entry(TestHost::get().table(), &plugin, why) != KVP_OK) {
      return "no entry, or it fails: " + std::string(why.text);
    }
    for (uint32_t i = 0; i < plugin->n_descriptors; ++i) {
      if (kind == plugin->descriptor(i)->id) descriptor = plugin->descriptor(i);
    }
    if (descriptor == nullptr || std::string(descriptor->iface_id) != KVP_IFACE_QUANTIZER) {
      return "no quantizer of that name";
    }
    iface = static_cast<const kvp_quantizer_iface*>(descriptor->iface);
    return {};
  }

  std::vector<kvp_option> options() const {
    std::vector<kvp_option> out;
    for (const auto& [key, value] : given) {
      char* end = nullptr;
      const int64_t integer = std::strtoll(value.c_str(), &end, 10);
      const bool text = *end != '\0';
      out.push_back({key.c_str(), value.c_str(), integer, 0, text ? KVP_OPTION_TEXT : KVP_OPTION_INTEGER, 0});
    }
    return out;
  }
};

// What an instance is made for.
struct Wish {
  kvp_qspec spec{};
  bool by_spec = false;  // else everything follows from the options
  int32_t role = KVP_ROLE_KEY;
  int64_t head_dim = 64;
  kvp_dtype dtype = kF32;
};

inline kvp_qcreate create_of(const Wish& wish, const std::vector<kvp_option>& options) {
  kvp_qcreate create{};
  create.struct_size = sizeof create;
  create.role = wish.role;
  create.head_dim = static_cast<int32_t>(wish.head_dim);
  create.spec = wish.by_spec ? &wish.spec : nullptr;
  create.options = options.data();
  create.n_options = options.size();
  create.dtype = wish.dtype;
  create.device_type = KVP_DEVICE_CPU;
  return create;
}

inline float rounded(float x, kvp_dtype dtype) {
  if (dtype.bits == 32) return x;
  if (dtype.code == KVP_DTYPE_FLOAT) return static_cast<float>(static_cast<_Float16>(x));
  const auto bits = std::bit_cast<uint32_t>(x);
  if (std::isnan(x)) return x;
  return std::bit_cast<float>((bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u);
}

inline float largest(kvp_dtype dtype) {
  return dtype.bits == 32 ? 0x1.fffffep127f : dtype.code == KVP_DTYPE_BFLOAT ? 0x1.fep127f : 65504.0f;
}
inline float smallest(kvp_dtype dtype) {
  return dtype.bits == 32 ? 0x1p-149f : dtype.code == KVP_DTYPE_BFLOAT ? 0x1p-133f : 0x1p-24f;
}
// Rounding to the type moves x by at most this.
inline double rounding_of(double x, kvp_dtype dtype) {
  const double relative = dtype.bits == 32 ? 0x1p-24 : dtype.code == KVP_DTYPE_BFLOAT ? 0x1p-8 : 0x1p-11;
  return std::abs(x) * relative + static_cast<double>(smallest(dtype)) / 2;
}

// Rounds to the type; values.h stores exact ones only.
inline void put(const Values& v, float x, int64_t b, int64_t h, int64_t s, int64_t c) {
  if (v.t.dtype_bits == 16 && v.t.dtype_code == KVP_DTYPE_FLOAT) {
    const auto half = static_cast<_Float16>(x);
    std::memcpy(v.at(b, h, s, c), &half, 2);
  } else {
    v.set(rounded(x, v.dtype()), b, h, s, c);
  }
}

template <class Body>
void each(const kvp_tensor& t, Body body) {
  for (int64_t b = 0; b < t.shape[0]; ++b) {
    for (int64_t h = 0; h < t.shape[1]; ++h) {
      for (int64_t s = 0; s < t.shape[2]; ++s) {
        for (int64_t c = 0; c < t.shape[3]; ++c) body(b, h, s, c);
      }
    }
  }
}

// Normally distributed, every token louder or softer than its neighbours, as keys and values are.
inline void fill_normal(const Values& v, Random& random) {
  std::normal_distribution<float> normal;
  std::vector<float> gain(static_cast<size_t>(v.t.shape[2]));
  for (float& g : gain) g = std::exp2(normal(random));
  each(v.t, [&](auto b, auto h, auto s, auto c) { put(v, normal(random) * gain[static_cast<size_t>(s)], b, h, s, c); });
}

inline kvp_tensor slice(kvp_tensor t, int axis, int64_t from, int64_t to) {
  t.data = static_cast<std::byte*>(t.data) + from * t.strides[axis] * (t.dtype_bits / 8);
  t.shape[axis] = to - from;
  return t;
}

// The parts of a plan, with their memory.
struct Packed {
  std::vector<Values> memory;
  std::vector<kvp_qpart> parts;

  Packed(const kvp_qplan& plan, unsigned char filler = 0xa5) {
    for (uint32_t i = 0; i < plan.n_parts; ++i) {
      const kvp_tensor& t = plan.parts[i].t;
      memory.push_back(
          make({t.dtype_code, t.dtype_bits, t.dtype_lanes}, {t.shape[0], t.shape[1], t.shape[2], t.shape[3]}));
      std::fill(memory[i].memory->begin(), memory[i].memory->end(), std::byte{filler});
      parts.push_back({plan.parts[i].role, plan.parts[i].flags, memory[i].t});
    }
  }

  uint32_t count() const { return static_cast<uint32_t>(parts.size()); }
  bool has_shared() const {
    return std::any_of(parts.begin(), parts.end(),
                       [](const kvp_qpart& p) { return (p.flags & KVP_QPART_SHARED) != 0; });
  }
  void copy_shared(const Packed& from) {
    for (size_t i = 0; i < parts.size(); ++i) {
      if ((parts[i].flags & KVP_QPART_SHARED) != 0) *memory[i].memory = *from.memory[i].memory;
    }
  }
  // What a cache passes for these blocks: SHARED parts whole, the others cut on an axis.
  std::vector<kvp_qpart> cut(int axis, int64_t from, int64_t to) const {
    std::vector<kvp_qpart> out = parts;
    for (kvp_qpart& part : out) {
      if ((part.flags & KVP_QPART_SHARED) == 0) part.t = slice(part.t, axis, from, to);
    }
    return out;
  }
  bool operator==(const Packed& other) const {
    return std::equal(memory.begin(), memory.end(), other.memory.begin(), other.memory.end(),
                      [](const Values& a, const Values& b) { return *a.memory == *b.memory; });
  }
};

// An instance; every failure is a failure of the test.
class Quantizer {
 public:
  explicit Quantizer(const Wish& wish) : wish_(wish) {
    const std::vector<kvp_option> options = QuantizerLibrary::get().options();
    const kvp_qcreate create = create_of(wish, options);
    ErrorText why;
    EXPECT_EQ(iface().create(&create, &self_, why), KVP_OK) << why.text;
  }
  ~Quantizer() { iface().destroy(self_); }
  Quantizer(const Quantizer&) = delete;
  Quantizer& operator=(const Quantizer&) = delete;

  explicit operator bool() const { return self_ != nullptr; }
  static const kvp_quantizer_iface& iface() { return *QuantizerLibrary::get().iface; }
  kvp_quantizer* self() const { return self_; }
  const Wish& wish() const { return wish_; }

  kvp_qspec describe() const {
    kvp_qspec spec{};
    spec.struct_size = sizeof spec;
    ErrorText why;
    EXPECT_EQ(iface().describe(self_, &spec, why), KVP_OK) << why.text;
    return spec;
  }
  double bound() const {
    double bound = -1;
    ErrorText why;
    EXPECT_EQ(iface().error_bound(self_, &bound, why), KVP_OK) << why.text;
    return bound;
  }
  kvp_qplan plan(int64_t batch, int64_t heads, int64_t tokens) const {
    kvp_qplan plan{};
    plan.struct_size = sizeof plan;
    ErrorText why;
    EXPECT_EQ(iface().plan(self_, batch, heads, tokens, wish_.head_dim, &plan, why), KVP_OK) << why.text;
    return plan;
  }
  // Tokens of one block.
  int64_t block() const { return plan(1, 1, 0).token_block; }
  Values values(int64_t batch, int64_t heads, int64_t tokens) const {
    return make(wish_.dtype, {batch, heads, tokens, wish_.head_dim});
  }
  Packed room_for(const kvp_tensor& t, unsigned char filler = 0xa5) const {
    return {plan(t.shape[0], t.shape[1], t.shape[2]), filler};
  }

  void quantize(const kvp_tensor& in, const std::vector<kvp_qpart>& parts, uint32_t flags = 0) const {
    const uint64_t bytes = plan(in.shape[0], in.shape[1], in.shape[2]).workspace_bytes;
    void* workspace = bytes == 0 ? nullptr : std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    ErrorText why;
    EXPECT_EQ(iface().quantize(self_, &kCpuCall, &in, flags, parts.data(), static_cast<uint32_t>(parts.size()),
                               workspace, why),
              KVP_OK)
        << why.text;
    std::free(workspace);
  }
  Packed packed(const kvp_tensor& in, unsigned char filler = 0xa5) const {
    Packed out = room_for(in, filler);
    quantize(in, out.parts);
    return out;
  }
  void dequantize(const std::vector<kvp_qpart>& parts, kvp_tensor out) const {
    ErrorText why;
    EXPECT_EQ(iface().dequantize(self_, &kCpuCall, parts.data(), static_cast<uint32_t>(parts.size()), &out, why),
              KVP_OK)
        << why.text;
  }
  Values unpacked(const Packed& packed, int64_t batch, int64_t heads, int64_t tokens, kvp_dtype dtype) const {
    Values out = make(dtype, {batch, heads, tokens, wish_.head_dim});
    dequantize(packed.parts, out.t);
    return out;
  }

 private:
  Wish wish_;
  kvp_quantizer* self_ = nullptr;
};

// Which scale an element of a block depends on, found out from outside: a scale that is made NaN makes its group NaN.
// [token * head_dim + channel] = index in the SCALE part of one block of one head; -1: none, -2: more than one.
std::vector<int64_t> scale_of_elements(const Quantizer& q);

// Every wish that the declared ranges allow at their ends, and what follows from the options, for both roles, the types
// and several head dims. Ranges of the strict mode are left out: they promise something else.
std::vector<Wish> wishes(std::initializer_list<int64_t> head_dims);
std::string text_of(const Wish& wish);

// Runs body(q) for an instance of each.
template <class Body>
void for_each_wish(std::initializer_list<int64_t> head_dims, Body body) {
  const std::vector<Wish> all = wishes(head_dims);
  ASSERT_FALSE(all.empty());
  for (const Wish& wish : all) {
    SCOPED_TRACE(text_of(wish));
    const Quantizer q(wish);
    ASSERT_TRUE(q);
    body(q);
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace kvplug::test
