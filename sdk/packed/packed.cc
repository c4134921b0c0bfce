// SPDX-License-Identifier: Apache-2.0
// Where codes lie in a block (packed.h), and moving them there and back: 64 bytes at a time, no intrinsics.
#include <kvplug/sdk/packed.h>

#include <cstring>
#include <numeric>

namespace kvplug::sdk {
namespace {

typedef uint8_t Bytes __attribute__((vector_size(16)));
constexpr int64_t kRowBytes = 64;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// A row is 64 bytes of codes before packing. Keys: a quad of dims, values: a quad of tokens of 16 dims. Either way
// whole units of 16 dims: kernels read four rows at once.
int64_t rows_of(const PackedForm& form) { return 4 * ceil_div(form.head_dim, kTileTokens); }

int64_t plane_bytes(int64_t rows, int bits) { return ceil_div(rows * bits, 8) * kRowBytes; }

// The four rows of one V dim tile and quad of tokens are 4 x 16 bytes transposed.
void interleave(const uint8_t* const from[4], uint8_t* row) {
  Bytes x[4];
  for (int i = 0; i < 4; ++i) memcpy(&x[i], from[i], sizeof x[i]);
  const auto low = [](Bytes a, Bytes b) {
    return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  };
  const auto high = [](Bytes a, Bytes b) {
    return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  };
  const Bytes a = low(x[0], x[2]), b = high(x[0], x[2]), c = low(x[1], x[3]), d = high(x[1], x[3]);
  const Bytes y[4] = {low(a, c), high(a, c), low(b, d), high(b, d)};
  memcpy(row, y, sizeof y);
}

void deinterleave(const uint8_t* row, uint8_t* const to[4]) {
  Bytes y[4];
  memcpy(y, row, sizeof y);
  const auto even = [](Bytes a, Bytes b) {
    return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  };
  const auto odd = [](Bytes a, Bytes b) {
    return __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
  };
  const Bytes a = even(y[0], y[1]), b = even(y[2], y[3]), c = odd(y[0], y[1]), d = odd(y[2], y[3]);
  const Bytes x[4] = {even(a, b), even(c, d), odd(a, b), odd(c, d)};
  for (int i = 0; i < 4; ++i) memcpy(to[i], &x[i], sizeof x[i]);
}

void gather_row(const PackedForm& form, const uint8_t* tile, int64_t r, uint8_t* row) {
  const int64_t dim = form.head_dim;
  if (form.role == KVP_ROLE_KEY) {
    const int64_t d = 4 * r, n = dim - d < 4 ? dim - d : 4;
    if (n < 4) memset(row, 0, kRowBytes);
    if (n <= 0) return;
    for (int64_t t = 0; t < kTileTokens; ++t) {
      const uint8_t* from = tile + t * dim + d;
      if (n == 4) {
        memcpy(row + 4 * t, from, 4);
      } else {
        memcpy(row + 4 * t, from, static_cast<size_t>(n));
      }
    }
    return;
  }
  const int64_t d = r / 4 * kTileTokens, t = r % 4 * 4, n = dim - d;
  uint8_t padded[4][kTileTokens] = {};
  const uint8_t* from[4];
  for (int64_t i = 0; i < 4; ++i) {
    from[i] = tile + (t + i) * dim + d;
    if (n >= kTileTokens) continue;
    memcpy(padded[i], from[i], static_cast<size_t>(n));
    from[i] = padded[i];
  }
  interleave(from, row);
}

void scatter_row(const PackedForm& form, const uint8_t* row, int64_t r, uint8_t* tile) {
  const int64_t dim = form.head_dim;
  if (form.role == KVP_ROLE_KEY) {
    const int64_t d = 4 * r, n = dim - d < 4 ? dim - d : 4;
    if (n <= 0) return;
    for (int64_t t = 0; t < kTileTokens; ++t) {
      uint8_t* to = tile + t * dim + d;
      if (n == 4) {
        memcpy(to, row + 4 * t, 4);
      } else {
        memcpy(to, row + 4 * t, static_cast<size_t>(n));
      }
    }
    return;
  }
  const int64_t d = r / 4 * kTileTokens, t = r % 4 * 4, n = dim - d;
  uint8_t padded[4][kTileTokens];
  uint8_t* to[4];
  for (int64_t i = 0; i < 4; ++i) to[i] = n >= kTileTokens ? tile + (t + i) * dim + d : padded[i];
  deinterleave(row, to);
  if (n >= kTileTokens) return;
  for (int64_t i = 0; i < 4; ++i) memcpy(tile + (t + i) * dim + d, padded[i], static_cast<size_t>(n));
}

// Bits [from, from + bits) of the codes of `row` as row r of a plane that was zeroed.
void put_row(const uint8_t* row, int from, int bits, int64_t r, uint8_t* plane) {
  const uint64_t mask = 0x0101010101010101u * ((1u << bits) - 1);
  const int64_t per = 8 / bits;
  const int up = static_cast<int>(r % per) * bits;
  uint8_t* to = plane + r / per * kRowBytes;
  for (int64_t i = 0; i < kRowBytes; i += 8) {
    uint64_t x, y;
    memcpy(&x, row + i, 8);
    memcpy(&y, to + i, 8);
    y |= ((x >> from) & mask) << up;
    memcpy(to + i, &y, 8);
  }
}

void take_row(const uint8_t* plane, int bits, int64_t r, int to_bit, uint8_t* row) {
  const uint64_t mask = 0x0101010101010101u * ((1u << bits) - 1);
  const int64_t per = 8 / bits;
  const int down = static_cast<int>(r % per) * bits;
  const uint8_t* from = plane + r / per * kRowBytes;
  for (int64_t i = 0; i < kRowBytes; i += 8) {
    uint64_t x, y;
    memcpy(&x, from + i, 8);
    memcpy(&y, row + i, 8);
    y |= ((x >> down) & mask) << to_bit;
    memcpy(row + i, &y, 8);
  }
}

}  // namespace

int64_t PackedForm::token_block() const noexcept {
  return group_dim == KVP_GROUP_TOKENS ? std::lcm(group_size, kTileTokens) : kTileTokens;
}

int64_t PackedForm::groups() const noexcept {
  if (group_dim == KVP_GROUP_TOKENS) return token_block() / group_size * head_dim;
  return ceil_div(head_dim, group_size) * kTileTokens;
}

int64_t PackedForm::tile_bytes() const noexcept {
  const int64_t rows = rows_of(*this);
  return bits == 3 ? plane_bytes(rows, 2) + plane_bytes(rows, 1) : plane_bytes(rows, bits);
}

int64_t PackedForm::high_plane() const noexcept { return bits == 3 ? plane_bytes(rows_of(*this), 2) : 0; }

int64_t PackedForm::data_bytes() const noexcept { return token_block() / kTileTokens * tile_bytes(); }

int64_t PackedForm::group_of(int64_t token, int64_t channel) const noexcept {
  if (group_dim == KVP_GROUP_TOKENS) return token / group_size * head_dim + channel;
  return channel / group_size * kTileTokens + token;
}

void pack_block(const PackedForm& form, const uint8_t* codes, std::byte* data) noexcept {
  const int64_t rows = rows_of(form), size = form.tile_bytes(), tiles = form.token_block() / kTileTokens;
  uint8_t* to = reinterpret_cast<uint8_t*>(data);
  memset(to, 0, static_cast<size_t>(size * tiles));
  for (int64_t t = 0; t < tiles; ++t, to += size, codes += kTileTokens * form.head_dim) {
    for (int64_t r = 0; r < rows; ++r) {
      uint8_t row[kRowBytes];
      gather_row(form, codes, r, row);
      if (form.bits == 3) {
        put_row(row, 0, 2, r, to);
        put_row(row, 2, 1, r, to + form.high_plane());
      } else {
        put_row(row, 0, form.bits, r, to);
      }
    }
  }
}

void unpack_tile(const PackedForm& form, const std::byte* tile, uint8_t* codes) noexcept {
  const int64_t rows = rows_of(form);
  const uint8_t* from = reinterpret_cast<const uint8_t*>(tile);
  for (int64_t r = 0; r < rows; ++r) {
    uint8_t row[kRowBytes] = {};
    if (form.bits == 3) {
      take_row(from, 2, r, 0, row);
      take_row(from + form.high_plane(), 1, r, 2, row);
    } else {
      take_row(from, form.bits, r, 0, row);
    }
    scatter_row(form, row, r, codes);
  }
}

void unpack_block(const PackedForm& form, const std::byte* data, uint8_t* codes) noexcept {
  const int64_t size = form.tile_bytes(), tiles = form.token_block() / kTileTokens;
  for (int64_t t = 0; t < tiles; ++t) unpack_tile(form, data + t * size, codes + t * kTileTokens * form.head_dim);
}

}  // namespace kvplug::sdk
