#include "protocol/codec/groups_codec.h"

#include <string_view>
#include <vector>

#include "protocol/base/status_macros.h"
#include "protocol/codec/codec.h"
#include "protocol/codec/list_limits.h"
#include "protocol/codec/text_codec.h"

namespace skein::protocol {
namespace {

// A value for every expert of every layer.
template <typename T>
absl::Status CheckShape(const std::vector<std::vector<T>>& in, std::string_view field) {
  if (in.size() > kLayersMax) return TooLarge(field, in.size(), kLayersMax);
  for (const std::vector<T>& layer : in) {
    if (layer.size() > kExpertsMax) return TooLarge(field, layer.size(), kExpertsMax);
  }
  return absl::OkStatus();
}

template <typename T, typename Builder>
void WriteLayers(const std::vector<std::vector<T>>& in, Builder out) {
  for (uint32_t i = 0; i < out.size(); ++i) {
    auto layer = out.init(i, static_cast<uint32_t>(in[i].size()));
    for (uint32_t e = 0; e < layer.size(); ++e) layer.set(e, in[i][e]);
  }
}

template <typename T, typename Reader>
absl::Status ReadLayers(Reader in, std::string_view field, std::vector<std::vector<T>>& out) {
  SKEIN_RETURN_IF_ERROR(CheckSize(in, field, kLayersMax));
  for (const auto layer : in) {
    SKEIN_RETURN_IF_ERROR(CheckSize(layer, field, kExpertsMax));
    std::vector<T>& read = out.emplace_back();
    read.reserve(layer.size());
    for (const T value : layer) read.push_back(value);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Write(const FormGroup& in, wire::FormGroup::Builder out) {
  out.setGroup(in.group.value());
  out.setRank(in.rank.value());
  out.setNumRanks(in.num_ranks);
  out.setEpoch(in.epoch.value());
  WriteText(in.communicator, [&](capnp::Text::Reader text) { out.setCommunicator(text); });
  if (in.places.size() > kRanksMax) {
    return TooLarge("FormGroup.places", in.places.size(), kRanksMax);
  }
  auto places = out.initPlaces(static_cast<uint32_t>(in.places.size()));
  for (uint32_t i = 0; i < places.size(); ++i) {
    auto place = places[i];
    WriteText(in.places[i].host, [&](capnp::Text::Reader text) { place.setHost(text); });
    WriteText(in.places[i].address, [&](capnp::Text::Reader text) { place.setAddress(text); });
  }
  SKEIN_RETURN_IF_ERROR(CheckShape(in.placement, "FormGroup.placement"));
  if (in.placement.empty()) return absl::OkStatus();
  WriteLayers(in.placement, out.initPlacement(static_cast<uint32_t>(in.placement.size())));
  return absl::OkStatus();
}

absl::Status Read(wire::FormGroup::Reader in, FormGroup& out) {
  out.group = GroupId(in.getGroup());
  out.rank = RankId(in.getRank());
  out.num_ranks = in.getNumRanks();
  out.epoch = Epoch(in.getEpoch());
  if (out.rank.value() >= out.num_ranks) {
    return Malformed("FormGroup.rank", Concat(out.rank.value(), " of ", out.num_ranks, " ranks"));
  }
  SKEIN_RETURN_IF_ERROR(ReadText(in.getCommunicator(), "FormGroup.communicator", out.communicator));
  const auto places = in.getPlaces();
  SKEIN_RETURN_IF_ERROR(CheckSize(places, "FormGroup.places", kRanksMax));
  if (places.size() != 0 && places.size() != out.num_ranks) {
    return Malformed("FormGroup.places",
                     Concat(places.size(), " places of ", out.num_ranks, " ranks"));
  }
  for (const auto place : places) {
    RankAddress& read = out.places.emplace_back();
    SKEIN_RETURN_IF_ERROR(ReadText(place.getHost(), "FormGroup.places.host", read.host));
    SKEIN_RETURN_IF_ERROR(ReadText(place.getAddress(), "FormGroup.places.address", read.address));
  }
  SKEIN_RETURN_IF_ERROR(ReadLayers(in.getPlacement(), "FormGroup.placement", out.placement));
  for (const std::vector<uint16_t>& layer : out.placement) {
    for (const uint16_t rank : layer) {
      if (rank < out.num_ranks) continue;
      return Malformed("FormGroup.placement",
                       Concat("an expert on rank ", rank, " of ", out.num_ranks, " ranks"));
    }
  }
  return absl::OkStatus();
}

absl::Status WriteLoad(const ExpertLoad& in, wire::StepResult::Builder out) {
  if (in.counts.empty()) return absl::OkStatus();
  SKEIN_RETURN_IF_ERROR(CheckShape(in.counts, "StepResult.expert_load"));
  auto load = out.initExpertLoad();
  load.setPrefill(in.prefill);
  WriteLayers(in.counts, load.initCounts(static_cast<uint32_t>(in.counts.size())));
  return absl::OkStatus();
}

absl::Status ReadLoad(wire::StepResult::Reader in, ExpertLoad& out) {
  if (!in.hasExpertLoad()) return absl::OkStatus();
  out.prefill = in.getExpertLoad().getPrefill();
  return ReadLayers(in.getExpertLoad().getCounts(), "StepResult.expert_load", out.counts);
}

}  // namespace skein::protocol
