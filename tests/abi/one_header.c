/* SPDX-License-Identifier: Apache-2.0 */
/* One header alone, twice: it needs no other before it and its guard works. Compiled as C and as C++ by HeaderMatrix.
 */
#include HEADER
#include HEADER

typedef char translation_unit_is_not_empty;
