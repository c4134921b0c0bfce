/* SPDX-License-Identifier: Apache-2.0 */
/* Measures the structs of the ABI; compiled as C99, since C is the language of the contract. */
#include "layout.h"

#include <kvplug/abi.h>

#include "layout_list.h"

#define STRUCT_ROW(type) {#type, NULL, 0, sizeof(type)},
#define FIELD_ROW(type, field) {#type, #field, offsetof(type, field), sizeof(((type*)0)->field)},

const layout_row layout_rows[] = {KVP_ABI_LAYOUT(STRUCT_ROW, FIELD_ROW)};
const size_t layout_n_rows = sizeof(layout_rows) / sizeof(layout_rows[0]);
