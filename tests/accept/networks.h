// Two network namespaces with a cable between them, of a test's own making. A direction is cut by a
// wrong hardware address at its beginning: what is sent then is nobody's. Owns the namespaces. One
// thread. Must never touch a network that it did not make.
#pragma once

#include <string>
#include <vector>

namespace skein::tests {

class Networks {
 public:
  static constexpr const char* kNearAddress = "10.77.0.1";
  static constexpr const char* kFarAddress = "10.77.0.2";

  // Not ok() where namespaces may not be made.
  Networks();
  ~Networks();
  Networks(const Networks&) = delete;
  Networks& operator=(const Networks&) = delete;

  bool ok() const { return ok_; }
  const std::string& far() const { return far_; }

  // Cuts what the near or the far side sends; false heals it.
  bool Cut(bool near, bool far) const;
  // Takes the near end of the cable down, or up again.
  bool SetLink(bool up) const;
  // This thread, and what it starts, lives on the near side from now on.
  bool Enter() const;

 private:
  static bool Ip(std::vector<std::string> arguments);

  const std::string near_, far_;
  bool ok_ = false;
};

}  // namespace skein::tests
