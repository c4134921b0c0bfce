// SPDX-License-Identifier: Apache-2.0
#include "core/registry.h"

#include <kvplug/cache.h>
#include <kvplug/quantizer.h>

#include <algorithm>

#include "core/did_you_mean.h"
#include "core/sha256.h"

namespace kvplug {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::string_view kLevels[] = {"none", "basic", "full"};

std::string first_line(const Error& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

// What the library says about itself against what its manifest says. A difference would make `check` and `schema` lie.
void check_against_manifest(const PluginLibrary& library, const Manifest& manifest) {
  const auto differ = [&](const std::string& what, const std::string& in_library, const std::string& in_manifest) {
    throw Error(Code::kPlugin, what + " is " + in_library + ", but its manifest says " + in_manifest,
                "manifest: " + manifest.path.string(), manifest.library_path.string());
  };
  if (library.id() != manifest.id) differ("the plugin's id", "\"" + library.id() + "\"", "\"" + manifest.id + "\"");
  if (library.version() != manifest.version) {
    differ("the plugin's version", "\"" + library.version() + "\"", "\"" + manifest.version + "\"");
  }

  std::vector<const Descriptor*> descriptors;
  for (const auto& cache : library.caches()) descriptors.push_back(&cache->descriptor);
  for (const auto& quantizer : library.quantizers()) descriptors.push_back(&quantizer->descriptor);
  for (const Provided& provided : manifest.provides) {
    const std::string name = provided.interface + " \"" + provided.name + "\"";
    const auto found = std::find_if(descriptors.begin(), descriptors.end(), [&](const Descriptor* descriptor) {
      return descriptor->iface_id == provided.interface && descriptor->id == provided.name;
    });
    if (found == descriptors.end()) differ("there", "no descriptor of " + name, "that it provides one");
    const auto& text = (*found)->options_schema;
    const Json schema = text ? OptionsSchema::parse(*text, library.path().string()).json() : OptionsSchema().json();
    if (schema != provided.schema.json()) {
      differ("the options schema of " + name, schema.dump(), provided.schema.json().dump());
    }
  }
  if (descriptors.size() != manifest.provides.size()) {
    differ("the number of descriptors", std::to_string(descriptors.size()), std::to_string(manifest.provides.size()));
  }
}

}  // namespace

void Registry::note_place(std::string place) {
  const std::lock_guard lock(mutex_);
  if (std::find(places_.begin(), places_.end(), place) == places_.end()) places_.push_back(std::move(place));
}

void Registry::note_problem(int32_t level, std::string line) {
  {
    const std::lock_guard lock(mutex_);
    if (std::find(problems_.begin(), problems_.end(), line) != problems_.end()) return;
    problems_.push_back(line);
  }
  host_.log(level, "plugins", line);
}

// Under mutex_.
const Manifest* Registry::known(const Manifest& manifest) const {
  const auto found = std::find_if(manifests_.begin(), manifests_.end(),
                                  [&](const auto& other) { return other->path == manifest.path; });
  return found == manifests_.end() ? nullptr : found->get();
}

// Under mutex_.
void Registry::check_new(const std::vector<std::unique_ptr<Manifest>>& fresh) const {
  std::vector<const Manifest*> known;
  for (const auto& manifest : manifests_) known.push_back(manifest.get());
  for (const auto& manifest : fresh) {
    for (const Manifest* other : known) {
      const auto clash = [&](const std::string& what) {
        throw Error(Code::kPlugin, "two plugins " + what, "the other one is " + other->path.string(),
                    manifest->path.string());
      };
      if (other->id == manifest->id) clash("have the id \"" + manifest->id + "\"");
      for (const Provided& mine : manifest->provides) {
        for (const Provided& its : other->provides) {
          if (mine.interface == its.interface && mine.name == its.name) clash("provide \"" + mine.name + "\"");
        }
      }
    }
    known.push_back(manifest.get());
  }
}

void Registry::add_search_path(const fs::path& given) {
  const fs::path folder = given.lexically_normal();
  if (!folder.is_absolute()) {
    throw Error(Code::kConfig, "plugin folder \"" + given.string() + "\" is not an absolute path",
                "the current folder is never searched; name the folder in full");
  }
  std::error_code failed;
  std::vector<fs::path> files;
  for (fs::directory_iterator at(folder, failed), end; !failed && at != end; at.increment(failed)) {
    files.push_back(at->path());
  }
  if (failed) {
    note_place(folder.string() + " (" + failed.message() + ")");
    return;
  }
  std::sort(files.begin(), files.end());

  std::vector<std::unique_ptr<Manifest>> fresh;
  std::vector<std::pair<int32_t, std::string>> problems;
  for (const fs::path& file : files) {
    if (file.extension() == ".toml") {
      try {
        fresh.push_back(std::make_unique<Manifest>(Manifest::read(file)));
      } catch (const Error& error) {
        problems.emplace_back(KVP_LOG_WARNING, first_line(error));
      }
    } else if (file.extension() == ".so") {
      if (!fs::exists(fs::path(file).replace_extension(".toml"), failed)) {
        problems.emplace_back(KVP_LOG_INFO,
                              file.string() + ": no manifest " + file.stem().string() + ".toml beside it; left alone");
      }
    }
  }

  {
    const std::lock_guard lock(mutex_);
    // The same file again, by a link or because its folder was named twice.
    for (std::size_t i = fresh.size(); i-- > 0;) {
      const bool twice = std::any_of(fresh.begin(), fresh.begin() + static_cast<std::ptrdiff_t>(i),
                                     [&](const auto& other) { return other->path == fresh[i]->path; });
      if (twice || known(*fresh[i]) != nullptr) fresh.erase(fresh.begin() + static_cast<std::ptrdiff_t>(i));
    }
    check_new(fresh);
    std::move(fresh.begin(), fresh.end(), std::back_inserter(manifests_));
  }
  note_place(folder.string());
  for (auto& [level, line] : problems) note_problem(level, std::move(line));
}

const Manifest& Registry::load(const fs::path& given, std::string_view sha256) {
  const fs::path path = fs::absolute(given);
  const fs::path manifest_path = path.extension() == ".toml" ? path : fs::path(path).replace_extension(".toml");
  std::error_code failed;
  if (!fs::exists(path, failed)) throw Error(Code::kPlugin, "there is no such file", {}, path.string());
  if (!fs::exists(manifest_path, failed)) {
    throw Error(Code::kPlugin, "there is no manifest " + manifest_path.filename().string() + " beside it",
                "a plugin is a library with a manifest of the same name", path.string());
  }
  std::vector<std::unique_ptr<Manifest>> fresh;
  fresh.push_back(std::make_unique<Manifest>(Manifest::read(manifest_path)));
  check_digest(*fresh.front(), sha256);
  const auto take = [&](bool last) -> const Manifest* {
    const std::lock_guard lock(mutex_);
    if (const Manifest* before = known(*fresh.front())) return before;
    check_new(fresh);
    if (last) manifests_.push_back(std::move(fresh.front()));
    return last ? manifests_.back().get() : fresh.front().get();
  };
  open(*take(false));
  const Manifest* manifest = take(true);
  note_place(manifest->path.string());
  return *manifest;
}

void Registry::check_digest(const Manifest& manifest, std::string_view sha256) const {
  std::error_code failed;
  if (sha256.empty() || !fs::exists(manifest.library_path, failed)) return;  // What is missing is told at the load.
  const std::string found = sha256_file(manifest.library_path);
  std::string wanted(sha256);
  std::transform(wanted.begin(), wanted.end(), wanted.begin(), [](unsigned char c) { return std::tolower(c); });
  if (found == wanted) return;
  throw Error(Code::kPlugin, "its sha256 is " + found + ", expected " + wanted, {}, manifest.library_path.string());
}

void Registry::set_min_conformance(std::string level) {
  if (std::find(std::begin(kLevels), std::end(kLevels), level) == std::end(kLevels)) {
    throw Error(Code::kConfig, "conformance level \"" + level + "\" is unknown", "known: " + join_words(kLevels));
  }
  const std::lock_guard lock(mutex_);
  min_conformance_ = std::move(level);
}

void Registry::check_conformance(const Manifest& manifest) const {
  std::string wanted;
  {
    const std::lock_guard lock(mutex_);
    wanted = min_conformance_;
  }
  const auto rank = [](std::string_view level) { return std::find(std::begin(kLevels), std::end(kLevels), level); };
  if (wanted == "none") return;
  std::string shown = manifest.conformance.level, why;
  if (shown != "none" && sha256_file(manifest.library_path) != manifest.conformance.sha256) {
    why = " (its manifest says " + shown + ", but of a library with another sha256)";
    shown = "none";
  }
  if (rank(shown) < rank(wanted)) {
    throw Error(Code::kPlugin, "conformance " + wanted + " is demanded, it shows " + shown + why,
                "run the validator on the library, or lower plugins.min_conformance", manifest.library_path.string());
  }
}

PluginLibrary& Registry::open(const Manifest& manifest) const {
  if (manifest.abi_major != KVP_ABI_MAJOR || manifest.abi_minor > KVP_ABI_MINOR) {
    const auto version = [](uint32_t major, uint32_t minor) {
      return std::to_string(major) + "." + std::to_string(minor);
    };
    throw Error(Code::kAbi,
                "plugin \"" + manifest.id + "\" needs plugin ABI " + version(manifest.abi_major, manifest.abi_minor) +
                    ", this host speaks " + version(KVP_ABI_MAJOR, KVP_ABI_MINOR),
                "use a version of the plugin, or of the host, that meets the other", manifest.path.string());
  }
  check_conformance(manifest);
  PluginLibrary& library = PluginLibrary::load(manifest.library_path);
  check_against_manifest(library, manifest);
  return library;
}

Registry::Entry Registry::find(std::string_view interface, std::string_view name) const {
  const std::lock_guard lock(mutex_);
  for (const auto& manifest : manifests_) {
    for (const Provided& provided : manifest->provides) {
      if (provided.interface == interface && provided.name == name) return {manifest.get(), &provided};
    }
  }
  return {nullptr, nullptr};
}

const OptionsSchema* Registry::schema(std::string_view interface, std::string_view name) const {
  const Entry entry = find(interface, name);
  return entry.provided == nullptr ? nullptr : &entry.provided->schema;
}

Schemas Registry::quantizer_schemas() const {
  Schemas schemas;
  for (const std::string& name : quantizers()) schemas.emplace(name, *schema(KVP_IFACE_QUANTIZER, name));
  return schemas;
}

const Manifest* Registry::manifest(std::string_view interface, std::string_view name) const {
  return find(interface, name).manifest;
}

std::vector<const Manifest*> Registry::manifests() const {
  const std::lock_guard lock(mutex_);
  std::vector<const Manifest*> all;
  for (const auto& manifest : manifests_) all.push_back(manifest.get());
  return all;
}

namespace {

std::vector<std::string> names_of(const std::vector<const Manifest*>& manifests, std::string_view interface) {
  std::vector<std::string> names;
  for (const Manifest* manifest : manifests) {
    for (const Provided& provided : manifest->provides) {
      if (provided.interface == interface) names.push_back(provided.name);
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

std::vector<std::string> Registry::cache_kinds() const { return names_of(manifests(), KVP_IFACE_CACHE); }
std::vector<std::string> Registry::quantizers() const { return names_of(manifests(), KVP_IFACE_QUANTIZER); }

std::vector<std::string> Registry::places() const {
  const std::lock_guard lock(mutex_);
  return places_;
}

std::vector<std::string> Registry::problems() const {
  const std::lock_guard lock(mutex_);
  return problems_;
}

const CachePlugin& Registry::cache(std::string_view kind) {
  const Entry entry = find(KVP_IFACE_CACHE, kind);
  if (entry.manifest == nullptr) {
    choose(kind);  // Throws: the kind is not registered.
    throw Error(Code::kConfig, "cache \"" + std::string(kind) + "\" is a retired word");
  }
  PluginLibrary& library = open(*entry.manifest);
  const auto found = std::find_if(library.caches().begin(), library.caches().end(),
                                  [&](const auto& plugin) { return plugin->descriptor.id == kind; });
  return **found;
}

const QuantizerPlugin& Registry::quantizer(std::string_view name) {
  const Entry entry = find(KVP_IFACE_QUANTIZER, name);
  if (entry.manifest == nullptr) {
    const OptionProblem unknown = unknown_quantizer(std::string(name), quantizers(), places());
    throw Error(Code::kConfig, unknown.message, unknown.hint);
  }
  PluginLibrary& library = open(*entry.manifest);
  const auto found = std::find_if(library.quantizers().begin(), library.quantizers().end(),
                                  [&](const auto& plugin) { return plugin->descriptor.id == name; });
  return **found;
}

Json Registry::describe() const {
  Json plugins = Json::array();
  for (const Manifest* manifest : manifests()) {
    Json provides = Json::array();
    for (const Provided& provided : manifest->provides) {
      provides.push_back(
          {{"interface", provided.interface}, {"name", provided.name}, {"options", provided.schema.json()}});
    }
    plugins.push_back({{"id", manifest->id},
                       {"version", manifest->version},
                       {"vendor", manifest->vendor},
                       {"summary", manifest->summary},
                       {"license", manifest->license},
                       {"abi", std::to_string(manifest->abi_major) + "." + std::to_string(manifest->abi_minor)},
                       {"manifest", manifest->path.string()},
                       {"library", manifest->library_path.string()},
                       {"conformance", manifest->conformance.level},
                       {"provides", std::move(provides)}});
  }
  return {{"plugins", std::move(plugins)}, {"problems", problems()}, {"searched", places()}};
}

}  // namespace kvplug
