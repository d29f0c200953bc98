// One post for all deltas that came since the last one.
// Thread: see the header.
// Must never: refuse a delta: the bound is one for each running sequence and step.
#include "coordinator/api/delta_courier.h"

#include <cstdint>
#include <utility>

namespace skein::coordinator {

DeltaCourier::DeltaCourier() : items_(SIZE_MAX, *this) {}

void DeltaCourier::Send(std::shared_ptr<DeltaReceiver> to, TokenDelta delta, const Poster& post) {
  if (is_closed_) return;
  (void)items_.TryPush({std::move(to), std::move(delta)});  // it has no bound to refuse by
  if (is_closed_) items_.TakeAll();
  if (is_posted_.exchange(true)) return;
  post([self = shared_from_this()] { self->Deliver(); });
}

void DeltaCourier::Deliver() {
  is_posted_ = false;
  for (const Item& item : items_.TakeAll()) item.to->OnDelta(item.delta);
}

void DeltaCourier::Close() {
  is_closed_ = true;
  items_.TakeAll();
}

}  // namespace skein::coordinator
