// The block channels of a simulated cluster: what is lent under which name, by whom. What a worker
// lends is gone with its process.
// Owns the parcels. One thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "protocol/base/transfer_id.h"
#include "tests/scheduler/fake_worker.h"

namespace skein::tests {

class SimTransfers {
 public:
  struct Offer {
    FakeWorker::Parcel parcel;
    std::weak_ptr<bool> lender;                  // alive
    std::function<void(bool taken)> on_fetched;  // told to the lender, once
  };
  void Lend(protocol::TransferId transfer, Offer offer) { offers_[transfer] = std::move(offer); }
  void Withdraw(protocol::TransferId transfer) { offers_.erase(transfer); }
  // Null: nobody who lives lends it.
  Offer* Find(protocol::TransferId transfer) {
    const auto found = offers_.find(transfer);
    return found == offers_.end() || found->second.lender.expired() ? nullptr : &found->second;
  }

 private:
  std::map<protocol::TransferId, Offer> offers_;
};

}  // namespace skein::tests
