// SPDX-License-Identifier: Apache-2.0
// The golden files: results of the reference implementation on tiny checkpoints, one JSON file of cases with a
// safetensors file beside it. Each part of the suite registers its cases with the tally.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "golden/tally.h"
#include "support/client.h"
#include "support/safetensors.h"

namespace kvplug::testing {

struct GoldenFile {
  json cases;
  std::map<std::string, GoldenTensor> tensors;

  explicit GoldenFile(const std::string& name) {
    const std::filesystem::path folder = std::filesystem::path(KVPLUG_TEST_DATA) / "golden";
    std::ifstream in(folder / (name + ".json"));
    const json document = json::parse(in);
    cases = document.at("cases");
    if (document.contains("tensors")) {
      tensors = read_safetensors((folder / name).parent_path() / document["tensors"].get<std::string>());
    }
  }
  const json& by_id(const std::string& id) const {
    const auto found = std::find_if(cases.begin(), cases.end(), [&](const json& c) { return c["id"] == id; });
    if (found == cases.end()) throw std::runtime_error("no golden case " + id);
    return *found;
  }
};

inline std::string model_folder(const std::string& name) { return std::string(KVPLUG_TEST_DATA) + "/models/" + name; }

// One family: its cases and its checkpoint, loaded when first needed.
class Family {
 public:
  Family(kvplug_host* host, std::string name) : host_(host), name_(std::move(name)), file_("generate/" + name_) {}
  kvplug_host* host() const { return host_; }
  const std::string& name() const { return name_; }
  const GoldenFile& file() const { return file_; }
  json document(json generation) const { return run_document(model_folder(name_), std::move(generation)); }
  kvplug_model* model() {
    if (!model_) model_ = load_model(host_, document({}));
    return model_.get();
  }

 private:
  kvplug_host* host_;
  std::string name_;
  GoldenFile file_;
  client::Model model_;
};

// Largest |a - b|; infinities of one sign and NaN pairs count as equal, anything else beside them as infinite.
inline double distance(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return INFINITY;
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
    const double d = std::fabs(double{a[i]} - double{b[i]});
    worst = std::isnan(d) ? INFINITY : std::max(worst, d);
  }
  return worst;
}

// The part of a tensor [..., vocab] that starts at row `index`.
inline std::span<const float> vocab_row(std::span<const float> all, size_t index, size_t vocab) {
  return all.subspan(index * vocab, vocab);
}

// Kinds that a case with this label or cache_implementation needs and the host does not provide; "" if none.
std::string missing_kind(const std::string& label, const std::set<std::string>& kinds);

void add_generate_cases(Tally& tally, const std::shared_ptr<Family>& family, const std::set<std::string>& kinds);
void add_flow_case(Tally& tally, const std::shared_ptr<Family>& family, const json& c,
                   const std::set<std::string>& kinds);
void add_logits_process_cases(Tally& tally, kvplug_host* host);
void add_error_cases(Tally& tally, const std::map<std::string, std::shared_ptr<Family>>& families);
void add_chat_cases(Tally& tally, kvplug_host* host);

}  // namespace kvplug::testing
