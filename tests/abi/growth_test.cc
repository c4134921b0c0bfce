// SPDX-License-Identifier: Apache-2.0
// How two versions of a struct meet: the field-exists rule, strided arrays, and the conversions to DLPack's layout.
#include <gtest/gtest.h>
#include <kvplug/abi.h>

#include <cstring>

namespace {

struct Old {
  size_t struct_size;
  int64_t a;
};
struct New {
  size_t struct_size;
  int64_t a;
  int64_t b;
  double c[2];
};

// What a reader of today does with a struct of any age.
int64_t read_b(const New* p) { return KVP_HAS_FIELD(p, b) ? p->b : 0; }

TEST(AbiGrowth, MissingFieldReadsAsZero) {
  // The old struct followed by bytes that are not its own: they must not be read as fields.
  New memory;
  std::memset(&memory, 0x7f, sizeof memory);
  const Old old{sizeof(Old), 5};
  std::memcpy(&memory, &old, sizeof old);
  EXPECT_TRUE(KVP_HAS_FIELD(&memory, a));
  EXPECT_FALSE(KVP_HAS_FIELD(&memory, b));
  EXPECT_EQ(read_b(&memory), 0);
}

TEST(AbiGrowth, FieldExistsOnlyIfWhollyCovered) {
  New n{};
  n.b = 9;
  n.struct_size = offsetof(New, b) + 7;
  EXPECT_EQ(read_b(&n), 0);
  n.struct_size = offsetof(New, b) + 8;
  EXPECT_EQ(read_b(&n), 9);
  EXPECT_FALSE(KVP_HAS_FIELD(&n, c));
  n.struct_size = offsetof(New, c) + 8;
  EXPECT_FALSE(KVP_HAS_FIELD(&n, c)) << "half an array is not there";
  n.struct_size = sizeof(New) + 64;
  EXPECT_TRUE(KVP_HAS_FIELD(&n, c)) << "a newer struct has all of today's fields";
}

TEST(AbiGrowth, WholeAbiStructHasAllItsFields) {
  kvp_cache_iface iface{};
  iface.struct_size = sizeof iface;
  EXPECT_TRUE(KVP_HAS_FIELD(&iface, get_extension));
  iface.struct_size = offsetof(kvp_cache_iface, get_extension);
  EXPECT_TRUE(KVP_HAS_FIELD(&iface, counters));
  EXPECT_FALSE(KVP_HAS_FIELD(&iface, get_extension));
}

TEST(AbiGrowth, StridedArrayOfANewerElement) {
  New rows[3] = {};
  for (int64_t i = 0; i < 3; ++i) rows[i].a = 10 + i;
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(KVP_AT(Old, rows, sizeof(New), i)->a, 10 + static_cast<int64_t>(i));
}

// Declared as dlpack.h does, with the device type as an enum.
enum TestDeviceType { kTestCpu = 1, kTestCuda = 2 };
struct TestDlTensor {
  void* data;
  struct {
    TestDeviceType device_type;
    int32_t device_id;
  } device;
  int32_t ndim;
  struct {
    uint8_t code, bits;
    uint16_t lanes;
  } dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};
static_assert(sizeof(TestDlTensor) == sizeof(kvp_dltensor), "kvp_dltensor mirrors DLTensor");
static_assert(offsetof(TestDlTensor, byte_offset) == offsetof(kvp_dltensor, byte_offset),
              "kvp_dltensor mirrors DLTensor");

TEST(AbiDlpack, ThereAndBack) {
  float data[24] = {};
  kvp_tensor t{};
  t.data = data;
  t.device_type = KVP_DEVICE_CPU;
  t.ndim = 3;
  t.dtype_code = KVP_DTYPE_FLOAT;
  t.dtype_bits = 32;
  t.dtype_lanes = 1;
  const int64_t shape[3] = {2, 3, 4}, strides[3] = {1, 8, 2};
  std::memcpy(t.shape, shape, sizeof shape);
  std::memcpy(t.strides, strides, sizeof strides);

  TestDlTensor dl;
  kvp_tensor_to_dltensor(&t, &dl);
  EXPECT_EQ(dl.device.device_type, kTestCpu);
  EXPECT_EQ(dl.ndim, 3);
  EXPECT_EQ(dl.dtype.bits, 32);
  EXPECT_EQ(dl.shape, t.shape);
  EXPECT_EQ(dl.byte_offset, 0u);

  kvp_tensor back;
  ASSERT_EQ(kvp_tensor_from_dltensor(&dl, &back), KVP_OK);
  EXPECT_EQ(std::memcmp(&back, &t, sizeof t), 0);
}

TEST(AbiDlpack, CompactStridesAndByteOffset) {
  float data[64] = {};
  int64_t shape[3] = {2, 3, 4};
  TestDlTensor dl{data, {kTestCpu, 0}, 3, {KVP_DTYPE_FLOAT, 32, 1}, shape, nullptr, 16};
  kvp_tensor t;
  ASSERT_EQ(kvp_tensor_from_dltensor(&dl, &t), KVP_OK);
  EXPECT_EQ(t.data, data + 4);
  EXPECT_EQ(t.strides[0], 12);
  EXPECT_EQ(t.strides[1], 4);
  EXPECT_EQ(t.strides[2], 1);
}

TEST(AbiDlpack, TooManyAxesLeaveTheTensorUntouched) {
  int64_t shape[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
  TestDlTensor dl{nullptr, {kTestCpu, 0}, 9, {KVP_DTYPE_FLOAT, 32, 1}, shape, nullptr, 0};
  kvp_tensor t{};
  t.ndim = 77;
  EXPECT_EQ(kvp_tensor_from_dltensor(&dl, &t), KVP_UNSUPPORTED);
  EXPECT_EQ(t.ndim, 77);
}

}  // namespace
