# The data plane on the wire. Fields are appended with the next ordinal; none is renumbered, reused
# or removed, so that a process can talk to one of the previous version.
@0xd1c04b39c3a5fb21;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("skein::protocol::wire");

struct RowSampling {
  temperature @0 :Float32;
  topP @1 :Float32;
  minP @2 :Float32;
  topK @3 :Int32;
  seed @4 :UInt64;
  numTopLogprobs @5 :Int32;
  processedLogprobs @6 :Bool;
}

struct TokenBias {
  token @0 :Int32;
  bias @1 :Float32;
}

struct SequenceEdits {
  presencePenalty @0 :Float32;
  frequencyPenalty @1 :Float32;
  repetitionPenalty @2 :Float32 = 1;
  bias @3 :List(TokenBias);
  allowedTokens @4 :List(Int32);
  badWords @5 :List(List(Int32));
  promptLength @6 :UInt32;
  historyBegin @7 :UInt32;
  history @8 :List(Int32);
}

struct PromptScoring {
  from @0 :UInt32;
  count @1 :UInt32;
  nextToken @2 :Int32 = -1;
  numTopLogprobs @3 :Int32;
}

struct SequenceStep {
  sequence @0 :UInt64;
  slot @1 :UInt32;
  freshSlot @2 :Bool;
  firstPosition @3 :UInt32;
  tokens @4 :List(Int32);
  tableSizeBefore @5 :UInt32;
  newBlocks @6 :List(UInt32);
  sample @7 :Bool;
  sampling @8 :RowSampling;
  mode @9 :UInt8 = 2;
  draftDepth @10 :UInt32;
  minSurvival @11 :Float32;
  providedDrafts @12 :List(Int32);
  feedDrafter @13 :Bool;
  edits @14 :SequenceEdits;
  masks @15 :List(List(UInt32));
  sharedLength @16 :UInt32;
  restoreFrom @17 :UInt32;  # slot + 1; 0: none
  saveTo @18 :UInt32;       # slot + 1; 0: none
  scoring @19 :PromptScoring;
}

struct StepPlan {
  group @0 :UInt32;
  rank @1 :UInt32;
  epoch @2 :UInt64;
  step @3 :UInt64;
  lane @4 :UInt32;
  sequences @5 :List(SequenceStep);
  planHash @6 :UInt64;
}

struct TopLogprob {
  token @0 :Int32;
  logprob @1 :Float32;
}

struct RowSummary {
  position @0 :UInt32;
  plainToken @1 :Int32;
  argmaxToken @2 :Int32;
  plainLogprob @3 :Float32;
  argmaxLogprob @4 :Float32;
  flags @5 :UInt32;
  top @6 :List(TopLogprob);
  draftToken @7 :Int32 = -1;
  draftLogprob @8 :Float32;
  confidence @9 :Float32;
  targetProbability @10 :Float32;
  draftProbability @11 :Float32;
  recoveredToken @12 :Int32 = -1;
  recoveredLogprob @13 :Float32;
  residualMass @14 :Float32;
}

struct TokenScore {
  logprob @0 :Float32;
  top @1 :List(TopLogprob);
}

struct VerificationSummary {
  sequence @0 :UInt64;
  rows @1 :List(RowSummary);
  scores @2 :List(TokenScore);
}

struct ExpertLoad {
  prefill @0 :Bool;
  counts @1 :List(List(UInt32));
}

struct StepResult {
  group @0 :UInt32;
  rank @1 :UInt32;
  epoch @2 :UInt64;
  step @3 :UInt64;
  lane @4 :UInt32;
  status @5 :UInt8;
  message @6 :Text;
  sequences @7 :List(VerificationSummary);
  deviceTimeUs @8 :UInt64;
  draftTimeUs @9 :UInt64;
  expertLoad @10 :ExpertLoad;
}

struct CacheGeometry {
  blockTokens @0 :UInt32;
  numBlocks @1 :UInt32;
  numSlots @2 :UInt32;
  maxRows @3 :UInt32;
  maxModelLen @4 :UInt32;
  maxDraftTokens @5 :UInt32;
  editsLogits @6 :Bool;
  numCheckpoints @7 :UInt32;
  recomputeTokens @8 :UInt32;
  scoresPrompts @9 :Bool;
  processesLogprobs @10 :Bool;
}
