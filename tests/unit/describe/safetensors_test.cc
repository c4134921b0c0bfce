// SPDX-License-Identifier: Apache-2.0
// Headers that lie: every claim of a safetensors header is compared with the file.
#include "model/describe/safetensors.h"

#include <gtest/gtest.h>

#include <functional>

#include "model_folder.h"

namespace kvplug::testing {
namespace {

struct Lie {
  const char* name;
  std::string header;
  std::string data;
  const char* message;  // part of the error
};

std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"a":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
}

TEST(Safetensors, GoodFileInDataOrder) {
  ModelFolder folder;
  folder.write_safetensors(
      "x.safetensors",
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2],"data_offsets":[8,12]},)"
      R"("a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},"e":{"dtype":"F16","shape":[0],"data_offsets":[12,12]}}   )",
      std::string(12, 'x'));
  const auto tensors = model::read_safetensors_header(folder.path() / "x.safetensors", 3);
  ASSERT_EQ(tensors.size(), 3u);
  EXPECT_EQ(tensors[0].name, "a");
  EXPECT_EQ(tensors[0].file, 3u);
  EXPECT_EQ(tensors[1].name, "b");
  EXPECT_EQ(tensors[1].bytes, 4u);
  EXPECT_EQ(tensors[1].offset, tensors[0].offset + 8);
  EXPECT_EQ(tensors[2].shape, std::vector<int64_t>{0});
}

TEST(Safetensors, LiesAreRefusedWithTheTensorsName) {
  const std::vector<Lie> lies = {
      {"shape larger than bytes", one("F32", "[1000,1000]", "[0,4]"), "abcd", "needs 4000000 bytes"},
      {"begin after end", one("F32", "[1]", "[4,0]"), "abcd", "end before they begin"},
      {"past the end", one("F32", "[2]", "[0,8]"), "abcd", "reach past the 4 bytes"},
      {"negative offset", one("F32", "[1]", "[-4,0]"), "abcd", "whole number of 0 or more"},
      {"negative size", one("F32", "[-1]", "[0,4]"), "abcd", "whole number of 0 or more"},
      {"fractional size", one("F32", "[1.5]", "[0,4]"), "abcd", "whole number of 0 or more"},
      {"product overflows", one("F32", "[4294967296,4294967296,2]", "[0,4]"), "abcd", "overflow"},
      {"size beyond int64", one("F32", "[18446744073709551615]", "[0,4]"), "abcd", "overflow"},
      {"nine dimensions", one("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), "abcd", "at most 8"},
      {"unknown dtype", one("Q4", "[1]", "[0,4]"), "abcd", "unknown dtype"},
      {"dtype a number", R"({"a":{"dtype":3,"shape":[1],"data_offsets":[0,4]}})", "abcd", "unknown dtype"},
      {"three offsets", one("F32", "[1]", "[0,4,8]"), "abcd", "[begin, end]"},
      {"entry a list", R"({"a":[1]})", "", "expected an object"},
      {"shape missing", R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", "abcd",
       "expected an object with dtype, shape"},
      {"overlap by two bytes",
       R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})",
       "abcdef", "inside the one before it"},
      {"gap of eight bytes",
       R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[12,16]}})",
       std::string(16, 'x'), "after a gap"},
      {"tail of no tensor", one("F32", "[1]", "[0,4]"), "abcdefgh", "belong to no tensor"},
      {"tensor given twice",
       R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
       "abcdefgh", "given twice"},
      {"NUL padding", one("F32", "[1]", "[0,4]") + std::string(3, '\0'), "abcd", "NUL"},
      {"not JSON", "{not json", "", "invalid JSON"},
      {"a list", "[]", "", "not a JSON object"},
      {"nested deeply", std::string(100000, '['), "", "nested deeper"},
  };
  for (const Lie& lie : lies) {
    SCOPED_TRACE(lie.name);
    ModelFolder folder;
    folder.write_safetensors("x.safetensors", lie.header, lie.data);
    try {
      model::read_safetensors_header(folder.path() / "x.safetensors", 0);
      ADD_FAILURE() << "accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Code::kCorrupt);
      EXPECT_NE(e.message().find(lie.message), std::string::npos) << e.message();
      EXPECT_NE(e.where().find("x.safetensors"), std::string::npos);
    }
  }
}

TEST(Safetensors, HeaderLengthIsBelievedOnlyAsFarAsTheFileGoes) {
  for (const uint64_t length : {uint64_t{1} << 63, uint64_t{1} << 30, uint64_t{93}, UINT64_MAX}) {
    ModelFolder folder;
    folder.write_raw("x.safetensors", std::string(reinterpret_cast<const char*>(&length), 8) + std::string(92, ' '));
    EXPECT_THROW(model::read_safetensors_header(folder.path() / "x.safetensors", 0), Error) << length;
  }
  for (const size_t bytes : {0u, 1u, 7u}) {
    ModelFolder folder;
    folder.write_raw("x.safetensors", std::string(bytes, '\0'));
    EXPECT_THROW(model::read_safetensors_header(folder.path() / "x.safetensors", 0), Error) << bytes;
  }
}

// Whatever a byte of the header becomes, the answer is a description or an Error.
TEST(Safetensors, EveryDamagedByteIsSurvived) {
  const std::string header =
      R"({"a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},"b":{"dtype":"F16","shape":[2],"data_offsets":[8,12]}})";
  ModelFolder folder;
  int refused = 0;
  for (size_t i = 0; i < header.size(); ++i) {
    for (const char byte : {'\0', '"', '{', '}', '9', '-', '\xff'}) {
      std::string damaged = header;
      damaged[i] = byte;
      folder.write_safetensors("x.safetensors", damaged, std::string(12, 'x'));
      try {
        model::read_safetensors_header(folder.path() / "x.safetensors", 0);
      } catch (const Error&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 400);
}

}  // namespace
}  // namespace kvplug::testing
