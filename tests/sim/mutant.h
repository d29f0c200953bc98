// Which planted bug is alive; included in front of the copies of product sources that have them,
// and nowhere else. Set once by main.
#pragma once

namespace skein::tests {

inline int chosen_mutant = 0;  // 0: none

}  // namespace skein::tests

#define SKEIN_MUTANT(number) (::skein::tests::chosen_mutant == (number))
