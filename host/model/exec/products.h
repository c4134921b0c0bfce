// SPDX-License-Identifier: Apache-2.0
// The matrix products of one session, by number of rows. Those of a decode step are bound when the session is prepared;
// a prompt's are made when its length is first met and kept for the lengths used last.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "model/exec/packed_model.h"

namespace kvplug::model {

class Products {
 public:
  explicit Products(const PackedModel& model) : model_(model) {}

  // Binds every product for `rows` rows; these are never dropped.
  void prepare(int64_t rows);
  // y [rows, out] = linear(x [rows, in]). When the model is deterministic, x and y must have room for a whole number of
  // kFixedRows, whose surplus rows are computed and mean nothing.
  void run(const Linear& linear, const void* x, void* y, int64_t rows);
  // The same for row counts that change from call to call, as an expert's do: computed as the next of few counts, at
  // most padded(rows), all of which up to `rows` of prepare() are bound. x and y must have room for padded(rows); what
  // the surplus rows hold means nothing.
  void run_padded(const Linear& linear, const void* x, void* y, int64_t rows);
  // The next count with at most two bits behind its highest one: surplus below a quarter.
  static int64_t padded(int64_t rows);
  // Memory products write while they run.
  size_t scratch_bytes() const { return scratchpad_.size(); }

 private:
  struct Set {
    int64_t rows = 0;
    uint64_t used = 0;
    bool keep = false;
    std::vector<std::unique_ptr<Product>> by_kind;
  };
  Set& set_for(int64_t rows);
  Product& product(const Linear& linear, int64_t rows);

  const PackedModel& model_;
  Scratchpad scratchpad_;
  std::vector<Set> sets_;
  uint64_t clock_ = 0;
};

}  // namespace kvplug::model
