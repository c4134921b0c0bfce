// SPDX-License-Identifier: Apache-2.0
#include "core/inspect.h"

#include <elf.h>
#include <kvplug/version.h>

#include <algorithm>
#include <boost/dll/library_info.hpp>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "core/did_you_mean.h"
#include "core/error.h"

namespace kvplug {
namespace {

namespace fs = std::filesystem;

#if defined(__x86_64__)
constexpr uint16_t kMachine = EM_X86_64;
#elif defined(__aarch64__)
constexpr uint16_t kMachine = EM_AARCH64;
#else
#error "name the ELF machine of this target"
#endif
constexpr std::string_view kEntryStem = "kvp_plugin_entry_v";

std::string machine_name(uint16_t machine) {
  switch (machine) {
    case EM_X86_64: return "x86-64";
    case EM_AARCH64: return "AArch64";
    case EM_386: return "x86 (32 bit)";
    case EM_ARM: return "ARM (32 bit)";
    case EM_RISCV: return "RISC-V";
    default: return "machine " + std::to_string(machine);
  }
}

// Header and section table, checked against the size of the file: the symbol reader trusts both.
void check_elf(const fs::path& path) {
  const auto fail = [&](const std::string& what) { throw Error(Code::kPlugin, what, {}, path.string()); };
  std::error_code failed;
  if (!fs::is_regular_file(path, failed)) fail(failed ? "cannot be read: " + failed.message() : "is not a file");
  const uint64_t size = fs::file_size(path, failed);
  std::ifstream file(path, std::ios::binary);
  if (failed || !file) fail("cannot be read");
  if (size == 0) fail("is empty (0 bytes)");

  Elf64_Ehdr header{};
  file.read(reinterpret_cast<char*>(&header), sizeof header);
  const bool magic = file.gcount() >= SELFMAG && std::memcmp(header.e_ident, ELFMAG, SELFMAG) == 0;
  if (!magic) fail("is not a shared library (no ELF header)");
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB) {
    fail("is not a 64-bit little-endian library");
  }
  if (!file) fail("is cut off: the ELF header is incomplete");
  if (header.e_machine != kMachine) {
    fail("is built for " + machine_name(header.e_machine) + ", this machine is " + machine_name(kMachine));
  }
  if (header.e_type != ET_DYN) fail("is an ELF file, but not a shared library");

  const uint64_t table = uint64_t{header.e_shnum} * sizeof(Elf64_Shdr);
  if (header.e_shnum == 0 || header.e_shentsize != sizeof(Elf64_Shdr) || header.e_shstrndx >= header.e_shnum ||
      header.e_shoff > size || table > size - header.e_shoff) {
    fail("is damaged or cut off: its section table does not lie within the file");
  }
  std::vector<Elf64_Shdr> sections(header.e_shnum);
  file.seekg(static_cast<std::streamoff>(header.e_shoff));
  file.read(reinterpret_cast<char*>(sections.data()), static_cast<std::streamsize>(table));
  for (const Elf64_Shdr& section : sections) {
    if (section.sh_type == SHT_NOBITS || section.sh_type == SHT_NULL) continue;
    if (section.sh_offset > size || section.sh_size > size - section.sh_offset) {
      fail("is damaged or cut off: a section does not lie within the file");
    }
  }
}

}  // namespace

void inspect_library(const fs::path& path) {
  check_elf(path);
  std::vector<std::string> symbols;
  try {
    symbols = boost::dll::library_info(path).symbols();
  } catch (const std::exception& error) {
    throw Error(Code::kPlugin, std::string("its symbols cannot be read: ") + error.what(), {}, path.string());
  }
  std::erase_if(symbols, [](const std::string& symbol) { return !symbol.starts_with("kvp_"); });
  std::sort(symbols.begin(), symbols.end());
  symbols.erase(std::unique(symbols.begin(), symbols.end()), symbols.end());

  const bool has_entry = std::erase(symbols, KVP_PLUGIN_ENTRY_NAME) > 0;
  const auto other = std::find_if(symbols.begin(), symbols.end(),
                                  [](const std::string& symbol) { return symbol.starts_with(kEntryStem); });
  if (!has_entry && other != symbols.end()) {
    throw Error(Code::kAbi,
                "is built for plugin ABI " + other->substr(kEntryStem.size()) + ", this host speaks " +
                    std::to_string(KVP_ABI_MAJOR) + "." + std::to_string(KVP_ABI_MINOR),
                "build the plugin against this host's headers, or use a host of its version", path.string());
  }
  if (!has_entry) {
    throw Error(Code::kPlugin, "is a shared library, but not a plugin: it does not export " KVP_PLUGIN_ENTRY_NAME, {},
                path.string());
  }
  if (!symbols.empty()) {
    throw Error(Code::kPlugin, "exports more than the entry: " + join_words(symbols),
                "a plugin exports " KVP_PLUGIN_ENTRY_NAME " and nothing else: hide the rest", path.string());
  }
}

}  // namespace kvplug
