// SPDX-License-Identifier: Apache-2.0
#include "core/manifest.h"

#include <kvplug/cache.h>
#include <kvplug/quantizer.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <initializer_list>
#include <sstream>

#include "core/did_you_mean.h"
#include "core/error.h"
#include "core/kinds.h"
#include "core/toml.h"

namespace kvplug {
namespace {

namespace fs = std::filesystem;

std::string read_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf() || file.peek() == std::ifstream::traits_type::eof())) {
    throw Error(Code::kIo, "cannot be read", {}, path.string());
  }
  return text.str();
}

// Takes the values of one table out of it, checks their types, and complains about keys that nobody asked for.
class Reader {
 public:
  Reader(const fs::path& path, const toml::table& table, std::string prefix)
      : path_(path), table_(table), prefix_(std::move(prefix)) {}

  [[noreturn]] void fail(const toml::source_region& at, const std::string& what, const std::string& hint = {}) const {
    const std::string where =
        path_.string() + ":" + std::to_string(at.begin.line) + ":" + std::to_string(at.begin.column);
    throw Error(Code::kPlugin, what, hint, where);
  }

  const toml::node* find(std::string_view key, bool required) const {
    const toml::node* node = table_.get(key);
    if (node == nullptr && required) fail(table_.source(), "the key `" + prefix_ + std::string(key) + "` is missing");
    return node;
  }

  std::string text(std::string_view key, bool required = true) const {
    const toml::node* node = find(key, required);
    if (node == nullptr) return {};
    const auto* value = node->as_string();
    if (value == nullptr || value->get().find('\0') != std::string::npos) fail_at(key, "expected a text");
    if (required && value->get().empty()) fail_at(key, "must not be empty");
    return value->get();
  }

  [[noreturn]] void fail_at(std::string_view key, const std::string& what) const {
    fail(table_.get(key)->source(), prefix_ + std::string(key) + ": " + what);
  }

  void only(std::initializer_list<std::string_view> known) const {
    for (const auto& [key, node] : table_) {
      if (std::find(known.begin(), known.end(), key.str()) != known.end()) continue;
      const std::string near = did_you_mean(key.str(), known);
      fail(key.source(), prefix_ + std::string(key.str()) + ": unknown key",
           (near.empty() ? "" : "did you mean `" + near + "`? ") + ("(keys: " + join_words(known) + ")"));
    }
  }

 private:
  const fs::path& path_;
  const toml::table& table_;
  const std::string prefix_;
};

void read_abi(const Reader& reader, Manifest& manifest) {
  const std::string text = reader.text("abi");
  const char *at = text.data(), *end = at + text.size();
  auto [dot, error] = std::from_chars(at, end, manifest.abi_major);
  if (error == std::errc() && dot != end && *dot == '.') {
    const auto [rest, minor_error] = std::from_chars(dot + 1, end, manifest.abi_minor);
    if (minor_error == std::errc() && rest == end) return;
  }
  reader.fail_at("abi", "\"" + text + "\" is not a version; expected \"major.minor\", as in \"0.1\"");
}

// A name of a file in the manifest's own folder.
std::string file_name(const Reader& reader, std::string_view key, bool required) {
  const std::string name = reader.text(key, required);
  if (name.find('/') != std::string::npos || name.find('\\') != std::string::npos || name == "." || name == "..") {
    reader.fail_at(key, "\"" + name + "\" must be the plain name of a file in the same folder");
  }
  return name;
}

Provided read_provided(const fs::path& path, const toml::table& table) {
  const Reader reader(path, table, "provides.");
  reader.only({"interface", "name", "options"});
  Provided provided;
  provided.interface = reader.text("interface");
  const bool cache = provided.interface == KVP_IFACE_CACHE;
  if (!cache && provided.interface != KVP_IFACE_QUANTIZER) {
    reader.fail_at("interface",
                   "\"" + provided.interface + "\" is unknown (known: " KVP_IFACE_CACHE ", " KVP_IFACE_QUANTIZER ")");
  }
  provided.name = reader.text("name");
  const auto builtin = cache ? builtin_cache_kinds() : builtin_quantizers();
  if (!valid_kind_name(provided.name, builtin)) {
    reader.fail_at("name", "\"" + provided.name +
                               "\" must be `vendor/name` in lower case; plain words are kept for "
                               "built-in kinds");
  }
  provided.options_file = file_name(reader, "options", false);
  if (!provided.options_file.empty()) {
    const fs::path file = path.parent_path() / provided.options_file;
    provided.schema = OptionsSchema::parse(read_text(file), file.string());
  }
  return provided;
}

void read_conformance(const fs::path& path, const toml::table& table, Manifest& manifest) {
  const Reader reader(path, table, "conformance.");
  reader.only({"level", "validator", "sha256"});
  manifest.conformance.level = reader.text("level");
  if (manifest.conformance.level != "basic" && manifest.conformance.level != "full") {
    reader.fail_at("level", "\"" + manifest.conformance.level + "\" is unknown (known: basic, full)");
  }
  manifest.conformance.validator = reader.text("validator");
  manifest.conformance.sha256 = reader.text("sha256");
}

}  // namespace

Manifest Manifest::read(const fs::path& given) {
  std::error_code failed;
  const fs::path canonical = fs::canonical(given, failed);
  if (failed) throw Error(Code::kIo, "cannot be read: " + failed.message(), {}, given.string());

  toml::table table;
  try {
    table = toml::parse(read_text(canonical), canonical.string());
  } catch (const toml::parse_error& error) {
    const auto& begin = error.source().begin;
    throw Error(Code::kPlugin, "not TOML: " + std::string(error.description()), {},
                canonical.string() + ":" + std::to_string(begin.line) + ":" + std::to_string(begin.column));
  }

  Manifest manifest;
  manifest.path = canonical;
  const Reader reader(manifest.path, table, "");
  const auto* version = reader.find("manifest_version", true)->as_integer();
  if (version == nullptr || version->get() != 1) {
    reader.fail_at("manifest_version", "this host reads manifests of version 1");
  }
  reader.only({"manifest_version", "id", "version", "vendor", "summary", "license", "library", "abi", "provides",
               "conformance"});
  manifest.id = reader.text("id");
  manifest.version = reader.text("version");
  manifest.vendor = reader.text("vendor");
  manifest.summary = reader.text("summary");
  manifest.license = reader.text("license");
  read_abi(reader, manifest);
  const std::string library = file_name(reader, "library", true);
  manifest.library_path = canonical.parent_path() / library;
  if (fs::path(library).stem() != canonical.stem()) {
    reader.fail_at("library", "\"" + library + "\" does not belong to this manifest, which must be called " +
                                  fs::path(library).stem().string() + ".toml");
  }

  const toml::array* provides = reader.find("provides", true)->as_array();
  if (provides == nullptr || provides->empty()) reader.fail_at("provides", "expected a list of at least one table");
  for (const toml::node& entry : *provides) {
    if (!entry.is_table()) reader.fail(entry.source(), "provides: expected a table");
    Provided provided = read_provided(manifest.path, *entry.as_table());
    for (const Provided& other : manifest.provides) {
      if (other.interface == provided.interface && other.name == provided.name) {
        reader.fail(entry.source(), "provides: \"" + provided.name + "\" is named twice");
      }
    }
    manifest.provides.push_back(std::move(provided));
  }

  if (const toml::node* node = reader.find("conformance", false)) {
    if (!node->is_table()) reader.fail_at("conformance", "expected a table");
    read_conformance(manifest.path, *node->as_table(), manifest);
  }
  return manifest;
}

}  // namespace kvplug
