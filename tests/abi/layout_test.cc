// SPDX-License-Identifier: Apache-2.0
// The binary promise: today's structs against golden_layout.txt.
// The rule: within an ABI major, lines of the golden file are never changed, moved or removed; a new field is a new
// line at the end of its struct (and a new size of the struct), a new struct a new paragraph. Frozen structs, those
// without struct_size, never change at all.
#include "layout.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {

struct Field {
  std::string name;
  size_t offset, size;
};
struct Struct {
  size_t size = 0;
  std::vector<Field> fields;
};
using Layout = std::map<std::string, Struct>;

Layout today() {
  Layout out;
  for (size_t i = 0; i < layout_n_rows; ++i) {
    const layout_row& r = layout_rows[i];
    if (r.field == nullptr) {
      out[r.type].size = r.size;
    } else {
      out[r.type].fields.push_back({r.field, r.offset, r.size});
    }
  }
  return out;
}

Layout golden() {
  std::ifstream in(ABI_GOLDEN);
  EXPECT_TRUE(in) << ABI_GOLDEN;
  Layout out;
  Struct* current = nullptr;
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    if (line[0] == ' ') {
      Field f;
      words >> f.name >> f.offset >> f.size;
      current->fields.push_back(f);
    } else {
      std::string name;
      words >> name;
      current = &out[name];
      words >> current->size;
    }
  }
  return out;
}

bool frozen(const Struct& s) { return s.fields.empty() || s.fields[0].name != "struct_size"; }

// The text of all headers without comments.
std::string header_code() {
  std::string all;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(ABI_INCLUDE)) {
    if (entry.path().extension() != ".h") continue;
    std::stringstream text;
    text << std::ifstream(entry.path()).rdbuf();
    const std::string s = text.str();
    for (size_t at = 0;;) {
      const size_t begin = s.find("/*", at);
      all += s.substr(at, begin - at);
      if (begin == std::string::npos) break;
      at = s.find("*/", begin) + 2;
    }
  }
  return all;
}

TEST(AbiLayout, EqualsGolden) {
  const Layout now = today(), then = golden();
  for (const auto& [name, old] : then) {
    ASSERT_TRUE(now.count(name)) << name << " has gone: the ABI is broken";
    const Struct& s = now.at(name);
    ASSERT_GE(s.fields.size(), old.fields.size()) << name << " has lost fields: the ABI is broken";
    for (size_t i = 0; i < old.fields.size(); ++i) {
      EXPECT_EQ(s.fields[i].name, old.fields[i].name) << name << ": field " << i << " was renamed or moved";
      EXPECT_EQ(s.fields[i].offset, old.fields[i].offset) << name << "." << old.fields[i].name << " has moved";
      EXPECT_EQ(s.fields[i].size, old.fields[i].size) << name << "." << old.fields[i].name << " has another size";
    }
    if (frozen(old)) {
      EXPECT_EQ(s.size, old.size) << name << " is frozen and may not grow";
    }
    EXPECT_EQ(s.size, old.size) << name << " has grown: append its new fields to golden_layout.txt (abi_layout_print)";
  }
  for (const auto& [name, s] : now) {
    EXPECT_TRUE(then.count(name)) << name << " is new: append it to golden_layout.txt (abi_layout_print)";
  }
}

TEST(AbiLayout, FieldsTileTheStruct) {
  for (const auto& [name, s] : today()) {
    size_t end = 0;
    for (const Field& f : s.fields) {
      EXPECT_EQ(f.offset, end) << name << ": a gap, or a field missing in layout_list.h, before " << f.name;
      end = f.offset + f.size;
    }
    EXPECT_EQ(end, s.size) << name << ": padding at the end, or a field missing in layout_list.h";
    if (!frozen(s)) {
      EXPECT_EQ(s.size % 8, 0u) << name << ": the end must be 8-aligned, so that the size is the version";
    }
  }
}

TEST(AbiLayout, EveryStructOfTheHeadersIsListed) {
  const std::string code = header_code();
  const Layout now = today();
  const std::regex re(R"(typedef struct (kvp_\w+) \{)");
  std::set<std::string> found;
  for (std::sregex_iterator it(code.begin(), code.end(), re), end; it != end; ++it) found.insert((*it)[1]);
  EXPECT_GT(found.size(), 30u);
  for (const auto& name : found) EXPECT_TRUE(now.count(name)) << name << " is missing in layout_list.h";
}

TEST(AbiLayout, OnlyPlainTypesCross) {
  const std::string code = header_code();
  const std::regex re(
      R"(\b(enum|bool|_Bool|long|short|unsigned int|union|va_list|wchar_t|time_t)\b|\.\.\.|\w\s*:\s*\d+\s*;)");
  for (std::sregex_iterator it(code.begin(), code.end(), re), end; it != end; ++it) {
    ADD_FAILURE() << "not allowed in an ABI header: " << it->str();
  }
}

}  // namespace
