// A sequence's tokens and logprobs are functions of the sequence alone: not of the batch beside it,
// of the chunks of its prefill or of the number of threads. The demo model on the cpu backend.
#include <algorithm>
#include <bit>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "protocol/json/json.h"
#include "tests/worker/tiny_model.h"
#include "worker/step_executor.h"

namespace skein::tests {
namespace {

constexpr size_t kGenerated = 48;
constexpr uint32_t kBlockTokens = 32;
constexpr size_t kAll = 100'000;

struct GoldenPrompt {
  std::string name;
  std::vector<int32_t> ids;
};

std::vector<GoldenPrompt> GoldenPrompts() {
  std::ifstream stream("tests/data/tiny-v41-goldens/goldens.json");
  std::stringstream text;
  text << stream.rdbuf();
  const auto json = protocol::ParseJson(text.str());
  EXPECT_TRUE(json.ok()) << json.status();
  std::vector<GoldenPrompt> prompts;
  for (const protocol::JsonValue& entry : json->Find("prompts")->elements()) {
    GoldenPrompt prompt;
    prompt.name = std::string(*entry.Find("name")->AsString("name"));
    for (const protocol::JsonValue& id : entry.Find("ids")->elements()) {
      prompt.ids.push_back(static_cast<int32_t>(*id.AsInt64("id")));
    }
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

const GoldenPrompt& PromptNamed(const std::string& name) {
  static const std::vector<GoldenPrompt> prompts = GoldenPrompts();
  for (const GoldenPrompt& prompt : prompts) {
    if (prompt.name == name) return prompt;
  }
  ADD_FAILURE() << "no prompt " << name;
  return prompts.front();
}

// One sequence on its way, planned as a scheduler would.
struct Generation {
  std::vector<int32_t> tokens;  // prompt, then what was generated
  size_t prompt_length = 0;
  size_t chunk = kAll;
  size_t wanted = kGenerated;
  protocol::RowSampling sampling;
  uint32_t slot = 0;
  std::vector<protocol::BlockId> blocks;  // all that it will need
  size_t computed = 0;
  size_t announced = 0;
  std::vector<protocol::RowSummary> rows;

  bool done() const { return rows.size() >= wanted; }
};

Generation Start(const std::vector<int32_t>& prompt, uint32_t slot, float temperature) {
  Generation g;
  g.tokens = prompt;
  g.prompt_length = prompt.size();
  g.slot = slot;
  g.sampling.temperature = temperature;
  g.sampling.seed = 1234 + slot;
  g.sampling.num_top_logprobs = 3;
  // Blocks of different sequences lie interleaved.
  for (uint32_t i = 0; i * kBlockTokens < prompt.size() + kGenerated; ++i) {
    g.blocks.emplace_back(i * 18 + (slot * 7) % 18);
  }
  return g;
}

protocol::SequenceStep NextStep(Generation& g) {
  protocol::SequenceStep step;
  const size_t count = std::min(g.chunk, g.tokens.size() - g.computed);
  step.sequence = protocol::SequenceId(g.slot);
  step.slot = protocol::SlotId(g.slot);
  step.fresh_slot = g.computed == 0;
  step.first_position = static_cast<uint32_t>(g.computed);
  const auto begin = g.tokens.begin() + static_cast<std::ptrdiff_t>(g.computed);
  step.tokens.assign(begin, begin + static_cast<std::ptrdiff_t>(count));
  step.table_size_before = static_cast<uint32_t>(g.announced);
  g.computed += count;
  while (g.announced * kBlockTokens < g.computed) {
    step.new_blocks.push_back(g.blocks[g.announced++]);
  }
  step.sample = g.computed == g.tokens.size();
  step.sampling = g.sampling;
  return step;
}

// Runs all generations in common steps until each has what it wants.
void RunTogether(worker::LoadedModel& model, std::vector<Generation>& generations) {
  model.input().Reset();
  for (int i = 0; i < 1000; ++i) {
    protocol::StepPlan plan;
    std::vector<Generation*> order;
    for (Generation& g : generations) {
      if (g.done()) continue;
      plan.sequences.push_back(NextStep(g));
      order.push_back(&g);
    }
    if (order.empty()) return;
    const protocol::StepResult result = worker::RunPlan(model, plan);
    ASSERT_EQ(result.status, protocol::StepStatus::kOk) << result.message;
    for (size_t s = 0; s < order.size(); ++s) {
      if (result.sequences[s].rows.empty()) continue;
      order[s]->rows.push_back(result.sequences[s].rows[0]);
      order[s]->tokens.push_back(result.sequences[s].rows[0].plain_token);
    }
  }
  FAIL() << "the generations do not end";
}

std::vector<protocol::RowSummary> RunOne(worker::LoadedModel& model, Generation generation) {
  std::vector<Generation> alone = {std::move(generation)};
  RunTogether(model, alone);
  return alone[0].rows;
}

// Tokens and the bits of every logprob.
void ExpectSame(const std::vector<protocol::RowSummary>& got,
                const std::vector<protocol::RowSummary>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].plain_token, want[i].plain_token) << "token " << i;
    ASSERT_EQ(std::bit_cast<uint32_t>(got[i].plain_logprob),
              std::bit_cast<uint32_t>(want[i].plain_logprob))
        << "token " << i << ": " << got[i].plain_logprob << " and " << want[i].plain_logprob;
    ASSERT_EQ(got[i], want[i]) << "token " << i;
  }
}

struct Case {
  const char* prompt;
  float temperature;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.prompt << " at " << c.temperature; }

class Exactness : public ::testing::TestWithParam<Case> {
 protected:
  static constexpr uint32_t kSlot = 5;

  static TinySetup Setup(int threads) {
    TinySetup setup;
    setup.threads = threads;
    setup.max_rows = 768;
    setup.max_samples = 18;
    setup.max_model_len = 512;
    setup.num_slots = 18;
    setup.num_blocks = 18 * 16;
    return setup;
  }
  static worker::LoadedModel& SharedModel() {
    static TinyModel* tiny = new TinyModel(Setup(1));
    return tiny->model();
  }

  Generation Wanted() const {
    return Start(PromptNamed(GetParam().prompt).ids, kSlot, GetParam().temperature);
  }
  // Alone, the prompt in one step, one thread.
  std::vector<protocol::RowSummary> Alone() const { return RunOne(SharedModel(), Wanted()); }
};

TEST_P(Exactness, AnswersAreNotDegenerate) {
  const std::vector<protocol::RowSummary> rows = Alone();
  ASSERT_EQ(rows.size(), kGenerated);
  bool other_than_greedy = false;
  for (const protocol::RowSummary& row : rows) {
    EXPECT_EQ(row.flags, 0U);
    EXPECT_EQ(row.top.size(), 3U);
    other_than_greedy = other_than_greedy || row.plain_token != row.argmax_token;
  }
  if (GetParam().temperature == 0) {
    EXPECT_FALSE(other_than_greedy);
  }
}

TEST_P(Exactness, TheChunksOfThePrefillChangeNothing) {
  const std::vector<protocol::RowSummary> alone = Alone();
  for (const size_t chunk : {size_t{1}, size_t{7}, size_t{64}}) {
    SCOPED_TRACE("chunks of " + std::to_string(chunk));
    Generation generation = Wanted();
    generation.chunk = chunk;
    ExpectSame(RunOne(SharedModel(), std::move(generation)), alone);
  }
}

TEST_P(Exactness, SeventeenOthersChangeNothing) {
  const std::vector<protocol::RowSummary> alone = Alone();
  const char* const names[] = {"stream40", "zh_text", "pydoc", "chat_think", "bible_129"};
  std::vector<Generation> batch;
  for (uint32_t slot = 0; slot < 18; ++slot) {
    if (slot == kSlot) {
      batch.push_back(Wanted());
      batch.back().chunk = 7;
      continue;
    }
    batch.push_back(Start(PromptNamed(names[slot % 5]).ids, slot, slot % 2 == 0 ? 0.0F : 1.0F));
    batch.back().chunk = slot + 1;
    batch.back().wanted = 20 + slot;
  }
  RunTogether(SharedModel(), batch);
  ExpectSame(batch[kSlot].rows, alone);
}

TEST_P(Exactness, ASecondThreadChangesNothing) {
  TinyModel two(Setup(2));
  ASSERT_TRUE(two.ok());
  ExpectSame(RunOne(two.model(), Wanted()), Alone());
}

TEST_P(Exactness, SlotAndBlocksChangeNothing) {
  const std::vector<protocol::RowSummary> alone = Alone();
  Generation elsewhere = Wanted();
  elsewhere.slot = 11;
  std::reverse(elsewhere.blocks.begin(), elsewhere.blocks.end());
  ExpectSame(RunOne(SharedModel(), std::move(elsewhere)), alone);
}

INSTANTIATE_TEST_SUITE_P(Prompts, Exactness,
                         ::testing::Values(Case{"chat_capital", 0.0F}, Case{"chat_capital", 0.8F},
                                           Case{"stream40", 0.0F}, Case{"stream40", 0.8F},
                                           Case{"tool_call", 0.0F}, Case{"tool_call", 0.8F}),
                         [](const auto& test) {
                           return std::string(test.param.prompt) +
                                  (test.param.temperature == 0 ? "_greedy" : "_seeded");
                         });

}  // namespace
}  // namespace skein::tests
