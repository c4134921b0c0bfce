/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Testing an exact cache through nothing but the ABI: a host that counts and can refuse memory, and an oracle.
 *
 * The oracle keeps one number per slot. Number s stands for elements that follow from s alone, 0 for zeros (padding,
 * and slots that a row does not have); so views are compared bit by bit without storing them twice.
 */
#ifndef KVPLUG_TESTS_EXAMPLES_DRIVER_H
#define KVPLUG_TESTS_EXAMPLES_DRIVER_H

#include <kvplug/abi.h>

#define CHECK(x) check((x) != 0, #x, __FILE__, __LINE__)
void check(int ok, const char* what, const char* file, int line); /* ends the program on failure */

/* ---- the host ---- */

typedef struct test_host {
  uint64_t live[KVP_N_PURPOSES]; /* bytes in HOST */
  uint64_t peak;                 /* of the sum */
  int64_t blocks;
  int64_t fail_in; /* the how-manieth allocation from now fails; -1 = none */
  uint64_t owner;  /* whom the next allocations must be booked on */
} test_host;

extern test_host host;
extern const kvp_host host_table;
uint64_t host_live(void);

/* ---- what is tested ---- */

enum { N_LAYERS = 2, MAX_ROWS = 6, MAX_SLOTS = 400 };
extern const kvp_layer layers[N_LAYERS];
extern const kvp_cache_iface* iface;
extern kvp_dtype dtype;
extern char text[256]; /* of the last error */
extern kvp_error last_error;
extern const kvp_call plain_call, check_call, prepared_call;

kvp_cache_create a_wish(void);

/* ---- the oracle ---- */

typedef struct oracle_row {
  int64_t seen, pad;
  int32_t slot[MAX_SLOTS];
} oracle_row;

typedef struct oracle {
  int64_t batch;
  oracle_row row[N_LAYERS][MAX_ROWS];
} oracle;

int64_t oracle_longest(const oracle* o, int layer);

/* Updates one layer of both with new numbers; pad and count may be NULL. Compares lengths before with views after, and
 * the views with the oracle. `fail` = the status to expect; then the oracle stays as it is. */
void update_both(kvp_cache* c, oracle* o, int layer, int64_t batch, int64_t tokens, const int64_t* pad,
                 const int64_t* count, int32_t fail);
/* Compares everything: rows, views of zero tokens, memory with the host's count. */
void compare(kvp_cache* c, const oracle* o);
void crop_oracle(oracle* o, int64_t n);
void gather_oracle(oracle* o, const int64_t* src, int64_t n);

#endif
