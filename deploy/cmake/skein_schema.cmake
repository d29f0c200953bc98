# skein_schema(NAME schema...): a static library of the C++ that Cap'n Proto makes of the schemas.
# Included as "protocol/schema/step.capnp.h"; generated code lives in the build tree only.
function(skein_schema name)
  set(CAPNPC_SRC_PREFIX ${PROJECT_SOURCE_DIR})
  set(CAPNPC_OUTPUT_DIR ${CMAKE_BINARY_DIR}/generated)
  file(MAKE_DIRECTORY ${CAPNPC_OUTPUT_DIR})
  capnp_generate_cpp(sources headers ${ARGN})
  add_library(${name} STATIC ${sources} ${headers})
  target_include_directories(${name} SYSTEM PUBLIC ${CAPNPC_OUTPUT_DIR})
  target_link_libraries(${name} PUBLIC CapnProto::capnp)
endfunction()
