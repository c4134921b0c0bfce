// SPDX-License-Identifier: Apache-2.0
// Every case of the golden files is found once and then either run, as a GoogleTest test of its own, or skipped with a
// reason. The table at the end tells which; a group of which nothing ran is a failure.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace kvplug::testing {

class Tally {
 public:
  // may_skip_groups: a group of which all was skipped is none of the suite's failures.
  explicit Tally(bool may_skip_groups = false) : may_skip_groups_(may_skip_groups) {}

  void run(const std::string& group, const std::string& name, std::function<void()> body) {
    ++groups_[group].found;
    ::testing::RegisterTest(group.c_str(), name.c_str(), nullptr, nullptr, __FILE__, __LINE__,
                            [this, group, body]() -> ::testing::Test* {
                              return new Case([this, group, body] {
                                ++groups_[group].run;
                                body();
                              });
                            });
  }
  void skip(const std::string& group, const std::string& reason, size_t cases = 1) {
    groups_[group].found += cases;
    groups_[group].skipped += cases;
    reasons_[reason] += cases;
  }
  // What of the cases that ran is not compared.
  void note(const std::string& text) { notes_.push_back(text); }

  // Prints the table; true if something ran in every group, or tests were chosen by a filter.
  bool close() const {
    const bool filtered = GTEST_FLAG_GET(filter) != "*";
    Counts sum;
    bool good = true;
    std::printf("\n%-48s %7s %7s %7s\n", "golden cases", "found", "run", "skipped");
    for (const auto& [name, counts] : groups_) {
      std::printf("%-48s %7zu %7zu %7zu\n", name.c_str(), counts.found, counts.run, counts.skipped);
      sum.found += counts.found, sum.run += counts.run, sum.skipped += counts.skipped;
      const bool none = counts.run == 0 && !(may_skip_groups_ && counts.skipped > 0);
      if (!filtered && (none || counts.run + counts.skipped != counts.found)) {
        std::printf("error: %s: not every case was run or skipped, or none was run\n", name.c_str());
        good = false;
      }
    }
    std::printf("%-48s %7zu %7zu %7zu\n", "all", sum.found, sum.run, sum.skipped);
    for (const auto& [reason, n] : reasons_) std::printf("  skipped %5zu: %s\n", n, reason.c_str());
    for (const std::string& text : notes_) std::printf("  note: %s\n", text.c_str());
    return good && (filtered || sum.run > 0);
  }

 private:
  struct Counts {
    size_t found = 0, run = 0, skipped = 0;
  };
  class Case : public ::testing::Test {
   public:
    explicit Case(std::function<void()> body) : body_(std::move(body)) {}
    void TestBody() override {
      try {
        body_();
      } catch (const std::exception& e) {
        ADD_FAILURE() << e.what();
      }
    }

   private:
    std::function<void()> body_;
  };
  bool may_skip_groups_;
  std::map<std::string, Counts> groups_;
  std::map<std::string, size_t> reasons_;
  std::vector<std::string> notes_;
};

}  // namespace kvplug::testing
