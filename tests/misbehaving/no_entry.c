/* SPDX-License-Identifier: Apache-2.0 */
/* An ordinary shared library. */
__attribute__((visibility("default"))) int ordinary_function(void) { return 1; }
