/* SPDX-License-Identifier: Apache-2.0 */
/* What missing_dependency.cc is linked with and does not find at run time. */
int absent_function(void);
__attribute__((visibility("default"))) int absent_function(void) { return 0; }
