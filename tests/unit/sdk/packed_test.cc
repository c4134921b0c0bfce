// SPDX-License-Identifier: Apache-2.0
// The layout of packed blocks: against its description, code by code, and there and back.
#include <gtest/gtest.h>
#include <kvplug/sdk/packed.h>

#include <random>
#include <set>
#include <string>
#include <vector>

namespace kvplug::sdk {
namespace {

std::vector<PackedForm> all_forms() {
  std::vector<PackedForm> forms;
  for (const int32_t role : {KVP_ROLE_KEY, KVP_ROLE_VALUE}) {
    for (const int32_t bits : {1, 2, 3, 4, 8}) {
      for (const int32_t group_dim : {KVP_GROUP_HEAD_DIM, KVP_GROUP_TOKENS}) {
        for (const int64_t size : {1, 4, 7, 16, 32, 48, 64, 128}) {
          for (const int64_t dim : {1, 2, 3, 6, 8, 12, 16, 20, 33, 64, 80, 96, 128, 192, 256}) {
            forms.push_back({role, bits, group_dim, size, dim, {KVP_DTYPE_FLOAT, 32, 1}});
          }
        }
      }
    }
  }
  return forms;
}

std::string name(const PackedForm& f) {
  return "role " + std::to_string(f.role) + " bits " + std::to_string(f.bits) + " group_dim " +
         std::to_string(f.group_dim) + " group_size " + std::to_string(f.group_size) + " head_dim " +
         std::to_string(f.head_dim);
}

std::vector<uint8_t> random_codes(const PackedForm& f, std::mt19937* random) {
  std::vector<uint8_t> codes(static_cast<size_t>(f.token_block() * f.head_dim));
  for (uint8_t& c : codes) c = static_cast<uint8_t>((*random)() & ((1u << f.bits) - 1));
  return codes;
}

// One code, read as packed.h says in words.
int code_at(const PackedForm& f, const std::vector<std::byte>& data, int64_t token, int64_t channel) {
  const int64_t t = token % 16;
  int64_t row, byte;
  if (f.role == KVP_ROLE_KEY) {
    row = channel / 4, byte = 4 * t + channel % 4;
  } else {
    row = channel / 16 * 4 + t / 4, byte = channel % 16 * 4 + t % 4;
  }
  const int64_t tile = token / 16 * f.tile_bytes();
  const auto bits_of = [&](int64_t plane, int bits) {
    const int64_t per = 8 / bits;
    const int x = std::to_integer<int>(data[static_cast<size_t>(tile + plane + row / per * 64 + byte)]);
    return (x >> (row % per * bits)) & ((1 << bits) - 1);
  };
  return f.bits == 3 ? bits_of(0, 2) | bits_of(f.high_plane(), 1) << 2 : bits_of(0, f.bits);
}

TEST(Packed, EveryCodeLiesWhereTheHeaderSays) {
  std::mt19937 random(1);
  for (const PackedForm& f : all_forms()) {
    const std::vector<uint8_t> codes = random_codes(f, &random);
    std::vector<std::byte> data(static_cast<size_t>(f.data_bytes()), std::byte{0xa5});
    pack_block(f, codes.data(), data.data());
    for (int64_t t = 0; t < f.token_block(); ++t) {
      for (int64_t d = 0; d < f.head_dim; ++d) {
        ASSERT_EQ(code_at(f, data, t, d), codes[static_cast<size_t>(t * f.head_dim + d)])
            << name(f) << " token " << t << " channel " << d;
      }
    }
  }
}

TEST(Packed, UnpackReturnsTheCodesAndNothingElse) {
  std::mt19937 random(2);
  for (const PackedForm& f : all_forms()) {
    const std::vector<uint8_t> codes = random_codes(f, &random);
    std::vector<std::byte> data(static_cast<size_t>(f.data_bytes()));
    pack_block(f, codes.data(), data.data());
    std::vector<uint8_t> got(codes.size() + 1, 0xa5);
    unpack_block(f, data.data(), got.data());
    ASSERT_EQ(got.back(), 0xa5) << name(f);
    got.pop_back();
    ASSERT_EQ(got, codes) << name(f);
  }
}

TEST(Packed, PaddingIsZero) {  // bytes of equal tokens are equal
  for (const int32_t role : {KVP_ROLE_KEY, KVP_ROLE_VALUE}) {
    const PackedForm f = {role, 4, KVP_GROUP_HEAD_DIM, 64, 6, {KVP_DTYPE_FLOAT, 32, 1}};
    std::vector<std::byte> data(static_cast<size_t>(f.data_bytes()), std::byte{0xff});
    const std::vector<uint8_t> codes(static_cast<size_t>(16 * f.head_dim), 0);
    pack_block(f, codes.data(), data.data());
    for (const std::byte b : data) ASSERT_EQ(b, std::byte{0});
  }
}

TEST(Packed, BlocksHoldWholeTilesAndGroups) {
  for (const PackedForm& f : all_forms()) {
    const int64_t block = f.token_block();
    ASSERT_EQ(block % kTileTokens, 0) << name(f);
    if (f.group_dim == KVP_GROUP_TOKENS) {
      ASSERT_EQ(block % f.group_size, 0) << name(f);
      ASSERT_TRUE(block == f.group_size || block <= 16 * f.group_size) << name(f);
    } else {
      ASSERT_EQ(block, kTileTokens) << name(f);
    }
  }
}

TEST(Packed, AGroupIsWhatSharesAScale) {
  for (const PackedForm& f : all_forms()) {
    std::set<int64_t> seen;
    for (int64_t t = 0; t < f.token_block(); ++t) {
      for (int64_t d = 0; d < f.head_dim; ++d) {
        const int64_t g = f.group_of(t, d);
        seen.insert(g);
        ASSERT_GE(g, 0) << name(f);
        ASSERT_LT(g, f.groups()) << name(f);
        const bool tokens = f.group_dim == KVP_GROUP_TOKENS;
        const int64_t t0 = tokens ? t / f.group_size * f.group_size : t,
                      d0 = tokens ? d : d / f.group_size * f.group_size;
        ASSERT_EQ(g, f.group_of(t0, d0)) << name(f);
      }
    }
    ASSERT_EQ(static_cast<int64_t>(seen.size()), f.groups()) << name(f);
  }
}

TEST(Packed, BitsPerCode) {
  for (const auto& [bits, bytes] : {std::pair<int32_t, int64_t>{8, 2048}, {4, 1024}, {3, 768}, {2, 512}, {1, 256}}) {
    for (const int32_t role : {KVP_ROLE_KEY, KVP_ROLE_VALUE}) {
      const PackedForm f = {role, bits, KVP_GROUP_HEAD_DIM, 64, 128, {KVP_DTYPE_FLOAT, 32, 1}};
      EXPECT_EQ(f.data_bytes(), bytes) << name(f);
    }
  }
}

}  // namespace
}  // namespace kvplug::sdk
