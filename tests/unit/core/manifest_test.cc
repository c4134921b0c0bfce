// SPDX-License-Identifier: Apache-2.0
// Manifests: what is read, and that every mistake is named with file, line and column.
#include "core/manifest.h"

#include <gtest/gtest.h>

#include "plugin_folder.h"

namespace kvplug {
namespace {

constexpr char kGood[] = R"(manifest_version = 1
id = "acme.kivi2"
version = "2.1"
vendor = "Acme"
summary = "a cache"
license = "MIT"
library = "libkivi2.so"
abi = "0.1"
provides = [{ interface = "kvp.cache/1", name = "acme/kivi2", options = "kivi2.options.json" },
            { interface = "kvp.quantizer/1", name = "acme/q" }]
[conformance]
level = "basic"
validator = "0.1"
sha256 = "ab"
)";

class ManifestFile : public testing::Test {
 protected:
  ManifestFile() {
    folder.write("kivi2.options.json", R"({"properties": {"depth": {"type": "integer", "default": 3}}})");
  }
  Manifest read(const std::string& text) {
    folder.write("libkivi2.toml", text);
    return Manifest::read(folder / "libkivi2.toml");
  }
  std::string fault(const std::string& from, const std::string& to) {
    const Error error = error_of([&] { read(replaced(kGood, from, to)); });
    EXPECT_EQ(error.code(), Code::kPlugin);
    return replaced(error.what(), folder.path().string() + "/", "");
  }
  TempFolder folder;
};

TEST_F(ManifestFile, IsRead) {
  const Manifest manifest = read(kGood);
  EXPECT_EQ(manifest.id, "acme.kivi2");
  EXPECT_EQ(manifest.version, "2.1");
  EXPECT_EQ(manifest.library_path, folder / "libkivi2.so");
  EXPECT_EQ(manifest.abi_major, 0U);
  EXPECT_EQ(manifest.abi_minor, 1U);
  ASSERT_EQ(manifest.provides.size(), 2U);
  EXPECT_EQ(manifest.provides[0].name, "acme/kivi2");
  ASSERT_NE(manifest.provides[0].schema.find("depth"), nullptr);
  EXPECT_TRUE(manifest.provides[1].schema.options().empty());
  EXPECT_EQ(manifest.conformance.level, "basic");
  EXPECT_EQ(read(replaced(kGood, "[conformance]\nlevel = \"basic\"\nvalidator = \"0.1\"\nsha256 = \"ab\"\n", ""))
                .conformance.level,
            "none");
}

TEST_F(ManifestFile, EveryMistakeIsNamedWithItsPlace) {
  EXPECT_EQ(fault("manifest_version = 1", "manifest_version = 2"),
            "libkivi2.toml:1:20: manifest_version: this host reads manifests of version 1");
  EXPECT_HAS(fault("manifest_version = 1\n", ""), "the key `manifest_version` is missing");
  EXPECT_HAS(fault("version = \"2.1\"\n", ""), "the key `version` is missing");
  EXPECT_HAS(fault("vendor = \"Acme\"", "vendor = 3"), "libkivi2.toml:4:10: vendor: expected a text");
  EXPECT_HAS(fault("id = \"acme.kivi2\"", "id = \"\""), "libkivi2.toml:2:6: id: must not be empty");
  EXPECT_HAS(fault("license", "licence"), "libkivi2.toml:6:1: licence: unknown key\n  did you mean `license`?");
  EXPECT_HAS(fault("\"libkivi2.so\"", "\"../libkivi2.so\""), "must be the plain name of a file in the same folder");
  EXPECT_HAS(fault("\"libkivi2.so\"", "\"other.so\""), "must be called other.toml");
  EXPECT_HAS(fault("\"0.1\"\nprovides", "\"0\"\nprovides"), "abi: \"0\" is not a version; expected \"major.minor\"");
  EXPECT_HAS(fault("kvp.cache/1", "kvp.cache/9"), "provides.interface: \"kvp.cache/9\" is unknown");
  EXPECT_HAS(fault("acme/kivi2", "kivi2"), "libkivi2.toml:9:49: provides.name: \"kivi2\" must be `vendor/name`");
  EXPECT_HAS(fault("kivi2.options.json", "sub/kivi2.json"), "provides.options");
  EXPECT_HAS(fault("{ interface = \"kvp.quantizer/1\", name = \"acme/q\" }",
                   "{ interface = \"kvp.cache/1\", name = \"acme/kivi2\" }"),
             "libkivi2.toml:10:13: provides: \"acme/kivi2\" is named twice");
  EXPECT_HAS(fault("\"basic\"", "\"gold\""), "conformance.level: \"gold\" is unknown (known: basic, full)");
  EXPECT_HAS(fault("id = \"acme", "id = \"acme\nx"), "libkivi2.toml:2:");
  EXPECT_HAS(error_of([&] { read("provides = 1"); }).what(), "manifest_version");
}

TEST_F(ManifestFile, AMissingOrBrokenSchemaIsNamed) {
  const Error missing = error_of([&] { read(replaced(kGood, "kivi2.options.json", "nowhere.json")); });
  EXPECT_EQ(missing.code(), Code::kIo);
  EXPECT_HAS(missing.what(), "nowhere.json: cannot be read");
  folder.write("kivi2.options.json", "{");
  EXPECT_HAS(error_of([&] { read(kGood); }).what(), "kivi2.options.json: options schema is not JSON");
}

TEST_F(ManifestFile, ALinkLeadsToTheFolderOfTheFile) {
  read(kGood);
  TempFolder links;
  fs::create_symlink(folder / "libkivi2.toml", links / "libkivi2.toml");
  EXPECT_EQ(Manifest::read(links / "libkivi2.toml").library_path, folder / "libkivi2.so");
}

}  // namespace
}  // namespace kvplug
