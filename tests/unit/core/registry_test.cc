// SPDX-License-Identifier: Apache-2.0
// The door: search, inspection, loading, blame. Each file that is not a plugin gets one precise line and is never
// mapped; code that has run stays mapped once.
#include "core/registry.h"

#include <elf.h>
#include <gtest/gtest.h>

#include <thread>

#include "core/error_buffer.h"
#include "core/sha256.h"
#include "plugin_folder.h"

namespace kvplug {
namespace {

// Lines of /proc/self/maps that name `part`.
int mapped(const std::string& part) {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find(part) != std::string::npos ? 1 : 0;
  return count;
}

class Door : public testing::Test {
 protected:
  // The failure of loading the plugin built from tests/misbehaving/<name>, its folder cut away.
  Error fault(const std::string& name) {
    return error_of([&] { registry.load(built_plugin(name) / (name + ".toml")); });
  }
  HostServices host;
  Registry registry{host};
};

TEST_F(Door, AGoodPluginIsFoundAndLoaded) {
  registry.add_search_path(built_plugin("plain"));
  EXPECT_EQ(registry.cache_kinds(), std::vector<std::string>{"test/plain"});
  EXPECT_NE(registry.schema("kvp.cache/1", "test/plain")->find("refuse"), nullptr);
  EXPECT_EQ(registry.schema("kvp.cache/1", "test/nobody"), nullptr);
  EXPECT_TRUE(registry.problems().empty());
  const CachePlugin& plugin = registry.cache("test/plain");
  EXPECT_EQ(plugin.library->id(), "test.plain");
  EXPECT_NE(plugin.iface.reserve, nullptr);  // Optional and absent there: filled in.
  ErrorText text;
  EXPECT_EQ(plugin.iface.reserve(nullptr, nullptr, 1, 1, text.get()), KVP_UNSUPPORTED);
  EXPECT_EQ(text.text(), "this cache has no reserve");
  EXPECT_FALSE(plugin.attend.has_value());
  EXPECT_EQ(&registry.cache("test/plain"), &plugin);
  const nlohmann::json described = registry.describe();
  EXPECT_EQ(described["plugins"][0]["provides"][0]["name"], "test/plain");
}

TEST_F(Door, NothingIsLoadedBeforeItIsNeeded) {
  TempFolder folder;
  copy_plugin("plain", folder.path());
  registry.add_search_path(folder.path());
  registry.schema("kvp.cache/1", "test/plain");
  EXPECT_EQ(mapped(folder.path()), 0);
  registry.cache("test/plain");
  EXPECT_GT(mapped(folder.path()), 0);
}

TEST_F(Door, TablesOfOtherSizesAreReadBothWays) {
  registry.load(built_plugin("other_sizes") / "other_sizes.so");
  const CachePlugin& plugin = registry.cache("test/other_sizes");
  EXPECT_EQ(plugin.iface.struct_size, sizeof(kvp_cache_iface));
  EXPECT_EQ(plugin.iface.get_extension("kvp.attend/1"), nullptr);
}

TEST_F(Door, VersionsThatDoNotMeetAreNamed) {
  Error error = fault("wrong_major");
  EXPECT_EQ(error.code(), Code::kAbi);
  EXPECT_HAS(error.what(), "wrong_major.so: is built for plugin ABI 7, this host speaks 0.");
  EXPECT_EQ(mapped("wrong_major.so"), 0);
  error = fault("wrong_major_table");
  EXPECT_EQ(error.code(), Code::kAbi);
  EXPECT_HAS(error.what(), "is built for plugin ABI 9.4, this host speaks 0.");
  error = fault("newer_host");
  EXPECT_EQ(error.code(), Code::kAbi);
  EXPECT_HAS(error.what(), "needs a host of 0.98 or later, this host speaks 0.");
  error = fault("refusing_entry");
  EXPECT_EQ(error.code(), Code::kAbi);
  EXPECT_HAS(error.what(), "test.refusing_entry 1.0 wants a host of ABI 0.9");
}

TEST_F(Door, AManifestThatNeedsALaterAbiIsRefusedWithoutLoading) {
  TempFolder folder;
  copy_plugin("plain", folder.path());
  folder.write("plain.toml", replaced(read_file(folder / "plain.toml"), "abi = \"0.1\"", "abi = \"0.77\""));
  registry.add_search_path(folder.path());
  const Error error = error_of([&] { registry.cache("test/plain"); });
  EXPECT_EQ(error.code(), Code::kAbi);
  EXPECT_HAS(error.what(), "plugin \"test.plain\" needs plugin ABI 0.77, this host speaks 0.");
  EXPECT_EQ(mapped(folder.path()), 0);
}

TEST_F(Door, LyingTablesAreThePluginsFault) {
  const std::pair<const char*, const char*> cases[] = {
      {"no_plugin", "its entry answered OK without a plugin"},
      {"missing_slot", "the required function update is missing"},
      {"lying_size", "struct_size is 9218888453225749180, which cannot be"},
      {"other_schema", "the options schema of kvp.cache/1 \"test/other_schema\" is"},
      {"other_id", "the plugin's id is \"test.another_name\", but its manifest says \"test.other_id\""},
      {"no_entry", "is a shared library, but not a plugin: it does not export kvp_plugin_entry_v0"},
      {"extra_export", "exports more than the entry: kvp_helper"},
      {"missing_dependency", "the system cannot load it: libkvplug_absent.so: cannot open shared object file"},
  };
  for (const auto& [name, message] : cases) {
    const Error error = fault(name);
    EXPECT_EQ(error.code(), Code::kPlugin) << name;
    EXPECT_HAS(error.what(), message);
    EXPECT_HAS(error.what(), std::string(name) + ".so: ");
  }
  for (const char* name : {"no_entry.so", "extra_export.so", "missing_dependency.so"}) EXPECT_EQ(mapped(name), 0);
}

TEST_F(Door, FilesThatAreNoLibraries) {
  TempFolder folder;
  copy_plugin("plain", folder.path());
  const std::string good = read_file(folder / "plain.so");
  const auto fault_of = [&](const std::string& bytes) {
    fs::remove(folder / "plain.so");
    folder.write("plain.so", bytes);
    const Error error = error_of([&] { registry.load(folder / "plain.so"); });
    EXPECT_EQ(error.code(), Code::kPlugin);
    EXPECT_EQ(mapped(folder.path()), 0);
    return std::string(error.what());
  };
  const std::string path = (folder / "plain.so").string();
  EXPECT_EQ(fault_of(""), path + ": is empty (0 bytes)");
  EXPECT_EQ(fault_of("#!/bin/sh\n"), path + ": is not a shared library (no ELF header)");
  EXPECT_EQ(fault_of(good.substr(0, 40)), path + ": is cut off: the ELF header is incomplete");
  EXPECT_HAS(fault_of(good.substr(0, good.size() / 2)), "is damaged or cut off");
  std::string other = good;
  other[EI_CLASS] = ELFCLASS32;
  EXPECT_HAS(fault_of(other), "is not a 64-bit little-endian library");
  other = good;
  other[offsetof(Elf64_Ehdr, e_machine)] = static_cast<char>(EM_RISCV);
  EXPECT_HAS(fault_of(other), "is built for RISC-V, this machine is ");
  other = good;
  other[offsetof(Elf64_Ehdr, e_type)] = ET_EXEC;
  EXPECT_HAS(fault_of(other), "is an ELF file, but not a shared library");
  // A section that claims to be larger than the file: the reader must not believe it.
  other = good;
  Elf64_Ehdr header;
  std::memcpy(&header, other.data(), sizeof header);
  const size_t size_field = header.e_shoff + sizeof(Elf64_Shdr) + offsetof(Elf64_Shdr, sh_size);
  std::memset(&other[size_field], 0x7f, 8);
  EXPECT_HAS(fault_of(other), "a section does not lie within the file");
  fs::remove(folder / "plain.so");
  EXPECT_HAS(error_of([&] { registry.load(folder / "plain.toml"); }).what(), "there is no such library");
  fs::create_directory(folder / "plain.so");
  EXPECT_HAS(error_of([&] { registry.load(folder / "plain.toml"); }).what(), "is not a file");
}

TEST_F(Door, OneFolderWithEverythingInIt) {
  TempFolder folder;
  copy_plugin("plain", folder.path());
  copy_plugin("no_entry", folder.path());
  folder.write("loose.so", "text");
  folder.write("notes.toml", "just = [text");
  folder.write("README", "text");
  registry.add_search_path(folder.path());
  const std::vector<std::string> problems = registry.problems();
  ASSERT_EQ(problems.size(), 2U);
  EXPECT_HAS(problems[0], "loose.so: no manifest loose.toml beside it");
  EXPECT_HAS(problems[1], "notes.toml:1:");
  EXPECT_EQ(registry.cache("test/plain").descriptor.id, "test/plain");
  EXPECT_HAS(error_of([&] { registry.cache("test/no_entry"); }).what(), "not a plugin");
}

TEST_F(Door, AnUnknownKindListsKnownOnesAndEveryPlace) {
  TempFolder folder;
  registry.add_search_path(folder.path());
  registry.add_search_path("/nowhere/plugins");
  const Error error = error_of([&] { registry.cache("acme/kivi"); });
  EXPECT_EQ(error.code(), Code::kConfig);
  EXPECT_HAS(error.what(), "cache \"acme/kivi\" not found");
  EXPECT_HAS(error.what(), "known kinds: none");
  EXPECT_HAS(error.what(), folder.path().string() + ", /nowhere/plugins (No such file or directory)");
  EXPECT_HAS(error_of([&] { registry.quantizer("hqq"); }).what(), "quantizer \"hqq\" not found");
}

TEST_F(Door, TheCurrentFolderIsNeverSearched) {
  const fs::path before = fs::current_path();
  fs::current_path(built_plugin("plain"));
  EXPECT_HAS(error_of([&] { registry.cache("test/plain"); }).what(), "not found");
  for (const char* relative : {"", ".", "plugins"}) {
    EXPECT_EQ(error_of([&] { registry.add_search_path(relative); }).code(), Code::kConfig);
  }
  fs::current_path(before);
}

TEST_F(Door, TwoManifestsWithOneIdAreAnErrorButTheSameOneTwiceIsNot) {
  registry.add_search_path(built_plugin("plain"));
  registry.add_search_path(built_plugin("plain"));
  TempFolder links;
  fs::create_symlink(built_plugin("plain") / "plain.toml", links / "plain.toml");
  registry.add_search_path(links.path());
  EXPECT_EQ(registry.manifests().size(), 1U);

  TempFolder copy;
  copy_plugin("plain", copy.path());
  copy_plugin("plain_twin", copy.path());
  Error error = error_of([&] { registry.add_search_path(copy.path()); });
  EXPECT_EQ(error.code(), Code::kPlugin);
  EXPECT_HAS(error.what(), copy.path().string() + "/plain.toml: two plugins have the id \"test.plain\"");
  EXPECT_HAS(error.what(), "the other one is " + (built_plugin("plain") / "plain.toml").string());
  EXPECT_EQ(registry.manifests().size(), 1U);  // Nothing of that folder is taken.
  copy.write("plain.toml", replaced(read_file(copy / "plain.toml"), "id = \"test.plain\"", "id = \"test.other\""));
  error = error_of([&] { registry.add_search_path(copy.path()); });
  EXPECT_HAS(error.what(), "two plugins provide \"test/plain\"");
}

TEST_F(Door, ExplicitLoadsMayDemandADigest) {
  const fs::path library = built_plugin("plain") / "plain.so";
  registry.load(library, sha256_file(library));
  const std::string other(64, 'a');
  const Error error = error_of([&] { registry.load(library, other); });
  EXPECT_HAS(error.what(), "its sha256 is " + sha256_file(library) + ", expected " + other);
  EXPECT_EQ(registry.load(library.parent_path() / "plain.toml").id, "test.plain");
  EXPECT_EQ(registry.places().size(), 1U);
  EXPECT_HAS(error_of([&] { registry.load("/nowhere/x.so"); }).what(), "/nowhere/x.so: there is no such file");
  TempFolder folder;
  fs::copy(library, folder.path());
  EXPECT_HAS(error_of([&] { registry.load(folder / "plain.so"); }).what(), "there is no manifest plain.toml beside it");
}

TEST_F(Door, ConformanceMayBeDemanded) {
  TempFolder folder;
  copy_plugin("plain", folder.path());
  const std::string manifest = read_file(folder / "plain.toml"), digest = sha256_file(folder / "plain.so");
  const auto conforming = [&](const std::string& sha256) {
    folder.write("plain.toml",
                 manifest + "[conformance]\nlevel = \"basic\"\nvalidator = \"0.1\"\nsha256 = \"" + sha256 + "\"\n");
    Registry fresh(host);
    fresh.add_search_path(folder.path());
    fresh.set_min_conformance("basic");
    fresh.cache("test/plain");
    fresh.set_min_conformance("full");
    EXPECT_HAS(error_of([&] { fresh.cache("test/plain"); }).what(), "conformance full is demanded, it shows basic");
  };
  conforming(digest);
  EXPECT_HAS(error_of([&] { conforming(std::string(64, '0')); }).what(), "but of a library with another sha256");
  EXPECT_EQ(error_of([&] { registry.set_min_conformance("gold"); }).code(), Code::kConfig);
}

// Every plugin a thousand times, bad ones too: what was refused before its code ran is not mapped, the others are
// mapped once, and nothing grows.
TEST_F(Door, AThousandLoadsDoNotGrowTheMaps) {
  const std::vector<std::string> names = {"plain",     "wrong_major", "wrong_major_table",  "no_entry",
                                          "no_plugin", "lying_size",  "missing_dependency", "extra_export"};
  const auto load_all = [&] {
    for (const std::string& name : names) {
      try {
        Registry fresh(host);
        fresh.load(built_plugin(name) / (name + ".so"));
      } catch (const Error&) {
      }
    }
  };
  load_all();
  const int before = mapped("misbehaving/");
  for (int i = 0; i < 1000; ++i) load_all();
  EXPECT_EQ(mapped("misbehaving/"), before);
}

TEST_F(Door, ManyThreadsMayLoadTheSamePlugin) {
  TempFolder folder;
  copy_plugin("plain", folder.path());
  registry.add_search_path(folder.path());
  std::vector<const CachePlugin*> found(8);
  std::vector<std::thread> threads;
  for (const CachePlugin*& slot : found) threads.emplace_back([&] { slot = &registry.cache("test/plain"); });
  for (std::thread& thread : threads) thread.join();
  for (const CachePlugin* plugin : found) EXPECT_EQ(plugin, found[0]);
}

}  // namespace
}  // namespace kvplug
