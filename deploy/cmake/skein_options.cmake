# Compiler options of every target of the tree: linked through skein_options, never directory-wide.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)

set(CMAKE_CXX_FLAGS_DEV "-O2 -g1" CACHE STRING "Flags of the Dev build type" FORCE)
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1" CACHE STRING "Flags of the Release build type" FORCE)

add_library(skein_options INTERFACE)
target_compile_options(skein_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:
  -Wall -Wextra -Wshadow -Wconversion -Wnon-virtual-dtor -Wimplicit-fallthrough -Werror
  # One expression, one result: a fused multiply-add is written out where it is meant.
  -ffp-contract=off
  -fstack-protector-strong>)
target_compile_definitions(skein_options INTERFACE
  _GLIBCXX_ASSERTIONS SKEIN_VERSION="${PROJECT_VERSION}")
target_include_directories(skein_options INTERFACE ${PROJECT_SOURCE_DIR})

find_program(SKEIN_MOLD mold)
if(SKEIN_MOLD)
  target_link_options(skein_options INTERFACE -fuse-ld=mold)
endif()
target_link_options(skein_options INTERFACE -Wl,-z,relro,-z,now)

# Hardening beside the stack protector: checked copies, indirect branches that land where they may,
# and with the linker's options above no table of addresses that can be written.
if(NOT SKEIN_SANITIZER)
  target_compile_options(skein_options INTERFACE -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2)
endif()
if(CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
  target_compile_options(skein_options INTERFACE -fcf-protection=full)
endif()
target_link_options(skein_options INTERFACE $<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:-pie>)

if(SKEIN_SANITIZER)
  target_compile_options(skein_options INTERFACE -fsanitize=${SKEIN_SANITIZER} -fno-omit-frame-pointer
    -fno-sanitize-recover=all)
  target_link_options(skein_options INTERFACE -fsanitize=${SKEIN_SANITIZER})
endif()
if(SKEIN_SANITIZER MATCHES "fuzzer")
  # Which lines a corpus reaches is counted too. Warnings are judged with GCC alone; UBSan's check of
  # function pointers cannot link Clang 14's coroutines.
  target_compile_options(skein_options INTERFACE -fprofile-instr-generate -fcoverage-mapping
    -fno-sanitize=function -Wno-error)
  target_link_options(skein_options INTERFACE -fprofile-instr-generate)
endif()
