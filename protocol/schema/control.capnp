# The control plane on the wire. Rules of growth: step.capnp.
@0x9ad4c87efb6f0c35;

using Cxx = import "/capnp/c++.capnp";
using Step = import "step.capnp";
$Cxx.namespace("skein::protocol::wire");

struct RegisterWorker {
  protocolVersion @0 :UInt32;
  build @1 :Text;
  backend @2 :Text;
  model @3 :Text;
  incarnation @4 :UInt64;
  geometry @5 :Step.CacheGeometry;
  protocolMinor @6 :UInt32;
  tokenizer @7 :Text;
  cacheLayout @8 :Text;
  numerics @9 :Text;
  features @10 :List(Text);
  predecessorEnd @11 :UInt8;
  rank @12 :UInt32;
  numRanks @13 :UInt32 = 1;
  blockAddress @14 :Text;
  host @15 :Text;
  groupAddress @16 :Text;
}

struct RankAddress {
  host @0 :Text;
  address @1 :Text;
}

struct FormGroup {
  group @0 :UInt32;
  rank @1 :UInt32;
  numRanks @2 :UInt32;
  epoch @3 :UInt64;
  communicator @4 :Text;
  places @5 :List(RankAddress);
  placement @6 :List(List(UInt16));
}

struct GroupFormed {
  group @0 :UInt32;
  rank @1 :UInt32;
  epoch @2 :UInt64;
}

struct AbortEpoch {
  group @0 :UInt32;
  epoch @1 :UInt64;
  reason @2 :Text;
}

struct Heartbeat {
  lastStep @0 :UInt64;
  queuedPlans @1 :UInt32;
  runningMs @2 :UInt32;
}

struct LeaseGrant {
  durationMs @0 :UInt32;
}

struct Shutdown {
  reason @0 :Text;
  refused @1 :Bool;
}

struct MoveBlocks {
  transfer @0 :UInt64;
  group @1 :UInt32;
  epoch @2 :UInt64;
  side @3 :UInt8;
  blocks @4 :List(UInt32);
  checkpoint @5 :UInt32;
  position @6 :UInt32;
  address @7 :Text;
  cacheLayout @8 :Text;
  numerics @9 :Text;
  timeoutMs @10 :UInt32;
}

struct BlocksMoved {
  transfer @0 :UInt64;
  group @1 :UInt32;
  epoch @2 :UInt64;
  side @3 :UInt8;
  status @4 :UInt8;
  message @5 :Text;
  bytes @6 :UInt64;
  tookUs @7 :UInt64;
}
