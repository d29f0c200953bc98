#include "worker/model/draft_head.h"

#include <cmath>

namespace skein::worker {

double Confidence(double logit) { return std::isnan(logit) ? 0 : 1 / (1 + std::exp(-logit)); }

size_t KeptDrafts(std::span<const double> confidence, double min_survival) {
  double survival = 1;
  size_t kept = 0;
  for (const double logit : confidence) {
    survival *= Confidence(logit);
    if (survival < min_survival) break;
    ++kept;
  }
  return kept;
}

}  // namespace skein::worker
