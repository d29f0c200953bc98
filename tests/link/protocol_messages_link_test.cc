// Links protocol_messages alone: a hidden dependency fails here.
#include "protocol/messages/message.h"
#include "protocol/messages/sampling_params.h"

int main() {
  const skein::protocol::Message message = skein::protocol::StepPlan{};
  return skein::protocol::ValidateSamplingParams({}).ok() && message.index() == 0 ? 0 : 1;
}
